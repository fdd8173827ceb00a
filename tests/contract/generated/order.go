// Orders with the client that openapi-generator makes for Go, as a partner would: `order.go` is all that is written by hand.
package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"order/api"
)

// Signs each request, with its query and its body.
type signer struct {
	accessKey string
	secret    []byte
}

func (signer signer) RoundTrip(request *http.Request) (*http.Response, error) {
	var body []byte
	if request.Body != nil {
		read, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		body = read
		request.Body = io.NopCloser(bytes.NewReader(body))
	}
	sum := sha256.Sum256(body)
	digest := hex.EncodeToString(sum[:])
	timestamp := strconv.FormatInt(time.Now().Unix(), 10)
	lines := []string{request.Method, request.URL.RequestURI(), timestamp, signer.accessKey, digest}
	mac := hmac.New(sha256.New, signer.secret)
	mac.Write([]byte(strings.Join(lines, "\n")))
	request.Header.Set("X-Service-Access-Key", signer.accessKey)
	request.Header.Set("X-Service-Timestamp", timestamp)
	request.Header.Set("X-Service-Content-SHA256", digest)
	request.Header.Set("X-Service-Signature", hex.EncodeToString(mac.Sum(nil)))
	return http.DefaultTransport.RoundTrip(request)
}

func check(wrong bool, what ...any) {
	if wrong {
		fmt.Fprintln(os.Stderr, what...)
		os.Exit(1)
	}
}

func main() {
	secret, err := base64.StdEncoding.DecodeString(os.Getenv("SECRET_KEY"))
	check(err != nil, "SECRET_KEY:", err)
	configuration := api.NewConfiguration()
	configuration.Servers = api.ServerConfigurations{{URL: os.Getenv("BASE_URL") + "/api/v1/api_partner"}}
	configuration.HTTPClient = &http.Client{Transport: signer{os.Getenv("ACCESS_KEY"), secret}, Timeout: 30 * time.Second}
	client := api.NewAPIClient(configuration)
	ctx := context.Background()

	// A page of the catalogue that has not changed is not sent again.
	options, response, err := client.OptionsAPI.ListOptions(ctx).Execute()
	check(err != nil || len(options.Options) == 0, "the options:", err)
	tag := response.Header.Get("ETag")
	_, response, _ = client.OptionsAPI.ListOptions(ctx).IfNoneMatch(tag).Execute()
	check(tag == "" || response.StatusCode != http.StatusNotModified, "the same options:", tag, response.Status)

	wanted := api.NewOrderRequest("generated-go", []api.Item{*api.NewItem(os.Getenv("OPTION_ID"), 1)})
	created, response, err := client.OrdersAPI.CreateOrder(ctx).OrderRequest(*wanted).Execute()
	check(err != nil || response.StatusCode != http.StatusCreated, "the order:", err)
	for _, name := range []string{"X-Request-Id", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"} {
		check(response.Header.Get(name) == "", "the order has no", name)
	}
	check(response.Header.Get("Cache-Control") != "no-store", "the order may be stored")

	deadline := time.Now().Add(30 * time.Second)
	for {
		order, _, err := client.OrdersAPI.ShowOrder(ctx, "generated-go").Execute()
		check(err != nil, "the look-up:", err)
		if order.State == api.OrderStateReady {
			break
		}
		check(time.Now().After(deadline), "the order is", order.State)
		time.Sleep(100 * time.Millisecond)
	}
	topup, _, err := client.TopupsAPI.ShowTopup(ctx, created.Products[0].TopupId).Execute()
	check(err != nil || topup.State != api.TopupStateReady || !topup.Esim.IsSet(), "the eSIM:", err)

	// The error of a repeated order can be read.
	_, response, err = client.OrdersAPI.CreateOrder(ctx).OrderRequest(*wanted).Execute()
	var refused *api.GenericOpenAPIError
	check(!errors.As(err, &refused) || response.StatusCode != http.StatusUnprocessableEntity, "the repeat:", err)
	messages, isMessages := refused.Model().(api.Messages)
	check(!isMessages || len(messages.Errors) != 1, "the repeat says", refused.Model())
	check(response.Header.Get("X-Service-Error") != string(api.ErrorCodeExternalOrderIdTaken), "the repeat has the code", response.Header.Get("X-Service-Error"))
}
