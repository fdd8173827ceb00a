// A partner's client and webhook receiver, with Go's standard library only.
//
//	BASE_URL=… ACCESS_KEY=… SECRET_KEY=… go run docs/examples/esim.go order EXTERNAL_ORDER_ID OPTION_ID QTY
//	… go run docs/examples/esim.go show EXTERNAL_ORDER_ID
//	… go run docs/examples/esim.go redeliver TOPUP_ID
//	… go run docs/examples/esim.go options
//	… go run docs/examples/esim.go webhook URL
//	WEBHOOK_SECRET=whsec_… go run docs/examples/esim.go receive PORT
package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const api = "/api/v1/api_partner"

// A signed request goes to no other host.
var client = http.Client{
	Timeout:       30 * time.Second,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// answer holds the status, the error code and the JSON of an answer. Status 0 means that there was no answer of the
// service: none that can be read, or an error without X-Service-Error, which comes from something in between, such as a
// proxy. It may have passed the request on before.
type answer struct {
	status int
	code   string
	body   []byte
}

func mac(key []byte, text []byte) []byte {
	hash := hmac.New(sha256.New, key)
	hash.Write(text)
	return hash.Sum(nil)
}

// setting reads an environment variable. If it is missing, the program ends with one line that says so.
func setting(name string) string {
	value := os.Getenv(name)
	if value == "" {
		fail(2, name+" is not set: set this environment variable to the value that we gave you")
	}
	return value
}

// keyIn reads the key in an environment variable. What is no key ends the program, because its signatures would only look
// forged.
func keyIn(name, prefix string) []byte {
	value := setting(name)
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(value, prefix))
	if !strings.HasPrefix(value, prefix) || err != nil || len(key) == 0 {
		form := "Base64 text"
		if prefix != "" {
			form = prefix + " and " + form
		}
		fail(2, name+" is not "+form+": use it exactly as you got it")
	}
	return key
}

// signed sends a signed request. The path must be percent-encoded already. The signature also covers the body, because
// the text that is signed contains the body's SHA-256, which is sent in X-Service-Content-SHA256.
func signed(method, path string, body any) answer {
	base, accessKey, key := setting("BASE_URL"), setting("ACCESS_KEY"), keyIn("SECRET_KEY", "")
	if !strings.HasPrefix(base, "http://") && !strings.HasPrefix(base, "https://") {
		fail(2, "BASE_URL does not begin with http:// or https://")
	}
	timestamp := strconv.FormatInt(time.Now().Unix(), 10)
	var content []byte
	var err error
	if body != nil {
		content, err = json.Marshal(body)
		if err != nil {
			return answer{body: []byte(err.Error())}
		}
	}
	hash := sha256.Sum256(content)
	digest := hex.EncodeToString(hash[:])
	text := strings.Join([]string{method, path, timestamp, accessKey, digest}, "\n")
	request, err := http.NewRequest(method, strings.TrimSuffix(base, "/")+path, bytes.NewReader(content))
	if err != nil {
		return answer{body: []byte(err.Error())}
	}
	request.Header.Set("X-Service-Access-Key", accessKey)
	request.Header.Set("X-Service-Timestamp", timestamp)
	request.Header.Set("X-Service-Content-SHA256", digest)
	request.Header.Set("X-Service-Signature", hex.EncodeToString(mac(key, []byte(text))))
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return answer{body: []byte(err.Error())}
	}
	defer response.Body.Close()
	received, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{body: []byte(err.Error())}
	}
	code := response.Header.Get("X-Service-Error")
	if code == "" && response.StatusCode/100 != 2 {
		text := fmt.Sprintf("the status %d without X-Service-Error is not of the service", response.StatusCode)
		return answer{body: []byte(text)}
	}
	if !json.Valid(received) {
		return answer{body: []byte("the answer is not JSON")}
	}
	return answer{response.StatusCode, code, received}
}

func show(externalOrderID string) answer {
	return signed("GET", api+"/orders/"+url.PathEscape(externalOrderID), nil)
}

// isDecided tells whether repeating the request would not change its answer.
func isDecided(answer answer) bool {
	isLater := answer.status == http.StatusTooManyRequests || answer.status == http.StatusRequestTimeout
	return answer.status != 0 && answer.status < 500 && !isLater
}

// isGone tells whether a look-up shows that nothing is bought.
func isGone(shown answer) bool {
	var order struct{ State string }
	isRead := shown.status == http.StatusOK && json.Unmarshal(shown.body, &order) == nil
	return shown.status == http.StatusNotFound || isRead && (order.State == "refused" || order.State == "cancelled")
}

// order orders until it is known whether the order is stored. After a 5xx, a 408, a 429 or without an answer, it sends
// the same id again, because another id would be a second order. It gives up after five requests; a real shop goes on
// until the answer is definite.
func order(externalOrderID, optionID string, qty int) answer {
	body := map[string]any{
		"external_order_id": externalOrderID,
		"products":          []any{map[string]any{"option_id": optionID, "qty": qty}},
	}
	var unanswered time.Time // when the last request was sent that got no answer
	for wait := time.Second; ; wait *= 2 {
		sent := time.Now()
		answer := signed("POST", api+"/orders", body)
		if answer.status == 0 {
			unanswered = sent
		}
		taken := strings.Contains(answer.code, "external_order_id_taken")
		if taken {
			// An earlier request stored this order, so nothing more is ordered. This shows what became of it.
			if shown := show(externalOrderID); isDecided(shown) && !isGone(shown) {
				return shown
			}
			// It is not bought, and its id is free again, or the look-up got no answer. The repeat decides.
		}
		final := !taken && isDecided(answer)
		if final && answer.status == http.StatusUnprocessableEntity && !unanswered.IsZero() {
			// The request without an answer may still be on its way, and be stored in spite of this refusal.
			rest := time.Until(unanswered.Add(time.Minute)).Round(time.Second)
			fmt.Fprintf(os.Stderr, "HTTP status 422; looking the order up in %s\n", rest)
			time.Sleep(rest)
			if shown := show(externalOrderID); !isGone(shown) {
				return shown
			}
			return answer
		}
		if final {
			return answer
		}
		if wait > 8*time.Second {
			fmt.Fprintln(os.Stderr, "it is unknown whether the order is stored: order it again with the same id")
			return answer
		}
		why := string(answer.body)
		if answer.status != 0 {
			why = strings.TrimSpace(fmt.Sprintf("HTTP status %d %s", answer.status, answer.code))
		}
		fmt.Fprintf(os.Stderr, "%s; repeating the order in %s\n", why, wait)
		time.Sleep(wait)
	}
}

// isOurs tells whether one of the signatures is made with our secret, and the timestamp is at most five minutes old.
func isOurs(key []byte, header http.Header, body []byte) bool {
	timestamp := header.Get("webhook-timestamp")
	sent, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || time.Since(time.Unix(sent, 0)).Abs() > 5*time.Minute {
		return false
	}
	text := append([]byte(header.Get("webhook-id")+"."+timestamp+"."), body...)
	expected := []byte("v1," + base64.StdEncoding.EncodeToString(mac(key, text)))
	for _, given := range strings.Split(header.Get("webhook-signature"), " ") {
		if hmac.Equal(expected, []byte(given)) {
			return true
		}
	}
	return false
}

func receive(port string) error {
	// The same webhook can arrive twice, with the same webhook-id. A real shop keeps these ids in its database.
	var lock sync.Mutex
	seen := map[string]bool{}
	key := keyIn("WEBHOOK_SECRET", "whsec_")
	return http.ListenAndServe("127.0.0.1:"+port, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Our webhooks have less than 64 KiB, so nobody can fill the memory.
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 65536))
		var content struct {
			TopupID         string `json:"topup_id"`
			ExternalOrderID string `json:"external_order_id"`
			Data            struct {
				Challenge string `json:"challenge"`
			} `json:"data"`
		}
		if err != nil || !isOurs(key, r.Header, body) || json.Unmarshal(body, &content) != nil {
			// After an answer other than 2xx the webhook is sent again, so none is lost while the secret changes.
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		lock.Lock()
		defer lock.Unlock()
		id, kind := r.Header.Get("webhook-id"), r.Header.Get("webhook-type")
		if !seen[id] {
			// A real shop stores the eSIM here, before it answers. Only ids are printed, because the activation
			// code is a secret.
			seen[id] = true
			if kind != "" {
				// Only a further event has a webhook-type; the webhook of an eSIM has none.
				fmt.Println("event", kind, id)
			} else {
				fmt.Println("ready", content.ExternalOrderID, content.TopupID)
			}
		}
		if kind == "webhook.test" {
			// A host that a sandbox account has chosen proves by this answer that it wants our webhooks.
			_ = json.NewEncoder(w).Encode(map[string]string{"challenge": content.Data.Challenge})
		}
	}))
}

func fail(status int, text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(status)
}

func main() {
	const usage = "usage: esim.go order|show|redeliver|options|webhook|receive …; see the head of this file"
	arguments := os.Args[1:]
	wanted := map[string]int{"order": 4, "show": 2, "redeliver": 2, "options": 1, "webhook": 2, "receive": 2}
	if len(arguments) == 0 || len(arguments) != wanted[arguments[0]] {
		fail(2, usage)
	}
	var answer answer
	switch arguments[0] {
	case "order":
		qty, err := strconv.Atoi(arguments[3])
		if err != nil {
			fail(2, usage)
		}
		answer = order(arguments[1], arguments[2], qty)
	case "show":
		answer = show(arguments[1])
	case "redeliver":
		answer = signed("POST", api+"/topups/"+url.PathEscape(arguments[1])+"/redeliver", nil)
	case "options":
		answer = signed("GET", api+"/options", nil)
	case "webhook":
		answer = signed("PUT", api+"/webhook", map[string]any{"url": arguments[1]})
	case "receive":
		fail(1, receive(arguments[1]).Error())
	}
	if answer.status == 0 {
		fail(1, "no answer that can be read: "+string(answer.body))
	}
	fmt.Println(string(answer.body))
	if answer.status < 200 || answer.status > 299 {
		fail(1, fmt.Sprintf("HTTP status %d %s", answer.status, answer.code))
	}
}
