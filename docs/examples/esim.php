#!/usr/bin/env php
<?php
// A partner's client and webhook receiver, with PHP's own functions only (PHP 8 or later).
//
//   BASE_URL=… ACCESS_KEY=… SECRET_KEY=… docs/examples/esim.php order EXTERNAL_ORDER_ID OPTION_ID QTY
//   … docs/examples/esim.php show EXTERNAL_ORDER_ID
//   … docs/examples/esim.php redeliver TOPUP_ID
//   … docs/examples/esim.php options
//   … docs/examples/esim.php webhook URL
//   WEBHOOK_SECRET=whsec_… docs/examples/esim.php receive PORT
//
// `receive` runs this file in PHP's own web server, where it answers each request as a webhook. Under another web
// server it does the same; set the variable SEEN to a folder there.
declare(strict_types=1);

const API = '/api/v1/api_partner';

/** Ends the program with one line. */
function fail(string $line, int $status = 2): never
{
    file_put_contents('php://stderr', "$line\n");
    exit($status);
}

/** An environment variable. If it is missing, the program ends with one line that says so. */
function setting(string $name): string
{
    return getenv($name) ?: fail("$name is not set: set this environment variable to the value that we gave you");
}

/** The key in an environment variable. What is no key ends the program, because its signatures would only look forged. */
function key_in(string $name, string $prefix = ''): string
{
    $text = setting($name);
    $key = str_starts_with($text, $prefix) ? base64_decode(substr($text, strlen($prefix)), true) : '';
    $form = ($prefix === '' ? '' : "$prefix and ") . 'Base64 text';
    return $key ?: fail("$name is not $form: use it exactly as you got it");
}

/**
 * Sends a signed request and returns the status, the error code and the body. The path must be percent-encoded already.
 * The signature also covers the body, because the text that is signed contains the body's SHA-256, which is sent in
 * X-Service-Content-SHA256. Status 0 means that there was no answer of the service: none that can be read, or an error
 * without X-Service-Error, which comes from something in between, such as a proxy. It may have passed the request on
 * before.
 */
function signed(string $method, string $path, ?array $body = null): array
{
    [$baseUrl, $accessKey, $key] = [setting('BASE_URL'), setting('ACCESS_KEY'), key_in('SECRET_KEY')];
    if (!preg_match('#^https?://#', $baseUrl)) {
        fail('BASE_URL does not begin with http:// or https://');
    }
    $timestamp = (string) time();
    $content = $body === null ? '' : json_encode($body, JSON_THROW_ON_ERROR);
    $digest = hash('sha256', $content);
    $text = implode("\n", [$method, $path, $timestamp, $accessKey, $digest]);
    $signature = hash_hmac('sha256', $text, $key);
    $context = stream_context_create(['http' => [
        'method' => $method,
        'header' => [
            "X-Service-Access-Key: $accessKey",
            "X-Service-Timestamp: $timestamp",
            "X-Service-Content-SHA256: $digest",
            "X-Service-Signature: $signature",
            'Content-Type: application/json',
            'Connection: close',
        ],
        'content' => $content,
        'timeout' => 30,
        'follow_location' => 0,
        'ignore_errors' => true,
    ]]);
    $answer = @file_get_contents(rtrim($baseUrl, '/') . $path, false, $context);
    if ($answer === false) {
        return [0, '', error_get_last()['message'] ?? ''];
    }
    $status = (int) explode(' ', $http_response_header[0])[1];
    $code = '';
    foreach ($http_response_header as $line) {
        if (stripos($line, 'X-Service-Error:') === 0) {
            $code = trim(substr($line, strlen('X-Service-Error:')));
        }
    }
    if ($code === '' && ($status < 200 || $status > 299)) {
        return [0, '', "the status $status without X-Service-Error is not of the service"];
    }
    if (json_decode($answer) === null) {
        return [0, '', 'the answer is not JSON'];
    }
    return [$status, $code, $answer];
}

/** Whether repeating the request would not change its answer. */
function is_decided(int $status): bool
{
    return $status > 0 && $status < 500 && !in_array($status, [408, 429], true);
}

/** Whether a look-up shows that nothing is bought. */
function is_gone(array $shown): bool
{
    [$status, , $body] = $shown;
    return $status === 404 || ($status === 200 && in_array(json_decode($body)->state, ['refused', 'cancelled'], true));
}

function show(string $externalOrderId): array
{
    return signed('GET', API . '/orders/' . rawurlencode($externalOrderId));
}

/**
 * Orders until it is known whether the order is stored. After a 5xx, a 408, a 429 or without an answer, it sends the
 * same id again, because another id would be a second order. It gives up after five requests; a real shop goes on until
 * the answer is definite.
 */
function order(string $externalOrderId, string $optionId, int $qty): array
{
    $body = ['external_order_id' => $externalOrderId, 'products' => [['option_id' => $optionId, 'qty' => $qty]]];
    $unanswered = null; // when the last request was sent that got no answer
    foreach ([1, 2, 4, 8, null] as $wait) {
        $sent = time();
        $answer = signed('POST', API . '/orders', $body);
        [$status, $code] = $answer;
        $unanswered = $status === 0 ? $sent : $unanswered;
        $isTaken = str_contains($code, 'external_order_id_taken');
        if ($isTaken) {
            // An earlier request stored this order, so nothing more is ordered. This shows what became of it.
            $shown = show($externalOrderId);
            if (is_decided($shown[0]) && !is_gone($shown)) {
                return $shown;
            }
            // It is not bought, and its id is free again, or the look-up got no answer. The repeat decides.
        }
        $isFinal = !$isTaken && is_decided($status);
        if ($isFinal && $status === 422 && $unanswered !== null) {
            // The request without an answer may still be on its way, and be stored in spite of this refusal.
            $rest = max(0, $unanswered + 60 - time());
            file_put_contents('php://stderr', "HTTP status 422; looking the order up in $rest s\n");
            sleep($rest);
            $shown = show($externalOrderId);
            return is_gone($shown) ? $answer : $shown;
        }
        if ($isFinal) {
            return $answer;
        }
        if ($wait === null) {
            file_put_contents('php://stderr', "it is unknown whether the order is stored: order it again with the same id\n");
            return $answer;
        }
        $why = $status > 0 ? trim("HTTP status $status $code") : $answer[2];
        file_put_contents('php://stderr', "$why; repeating the order in $wait s\n");
        sleep($wait);
    }
}

/** Whether one of the signatures is made with our secret, and the timestamp is at most five minutes old. */
function is_ours(string $key, string $body): bool
{
    $timestamp = $_SERVER['HTTP_WEBHOOK_TIMESTAMP'] ?? '';
    if (!ctype_digit($timestamp) || strlen($timestamp) > 12 || abs(time() - (int) $timestamp) > 300) {
        return false;
    }
    $text = ($_SERVER['HTTP_WEBHOOK_ID'] ?? '') . ".$timestamp.$body";
    $expected = 'v1,' . base64_encode(hash_hmac('sha256', $text, $key, true));
    foreach (explode(' ', $_SERVER['HTTP_WEBHOOK_SIGNATURE'] ?? '') as $given) {
        if (hash_equals($expected, $given)) {
            return true;
        }
    }
    return false;
}

/** Answers one webhook. */
function webhook(): void
{
    $body = file_get_contents('php://input');
    // A secret that is none ends this with a 500, because it is a mistake in the settings, and no forged webhook.
    http_response_code(500);
    if (!is_ours(key_in('WEBHOOK_SECRET', 'whsec_'), $body)) {
        // After an answer other than 2xx the webhook is sent again, so none is lost while the secret changes.
        http_response_code(401);
        return;
    }
    $content = json_decode($body, true, 16, JSON_THROW_ON_ERROR);
    // Only a further event has a webhook-type; the webhook of an eSIM has none.
    [$id, $kind] = [$_SERVER['HTTP_WEBHOOK_ID'], $_SERVER['HTTP_WEBHOOK_TYPE'] ?? null];
    // The same webhook can arrive twice, with the same webhook-id. PHP keeps no memory between requests, so a file in
    // the receiver's folder notes each id. A real shop keeps them in its database.
    $note = getenv('SEEN') . '/' . hash('sha256', $id);
    if (@fopen($note, 'x')) {
        // A real shop stores the eSIM here, before it answers. Only ids are printed, because the activation code is a
        // secret.
        $line = $kind ? "event $kind $id" : "ready {$content['external_order_id']} {$content['topup_id']}";
        file_put_contents('php://stdout', "$line\n");
    }
    http_response_code(200);
    if ($kind === 'webhook.test') {
        // A host that a sandbox account has chosen proves by this answer that it wants our webhooks.
        echo json_encode(['challenge' => $content['data']['challenge'] ?? null]);
    }
}

function receive(string $port): never
{
    key_in('WEBHOOK_SECRET', 'whsec_');
    $seen = sys_get_temp_dir() . '/esim-' . bin2hex(random_bytes(8));
    mkdir($seen, 0700);
    $environment = ['SEEN' => $seen] + getenv();
    pcntl_exec(PHP_BINARY, ['-S', "127.0.0.1:$port", __FILE__], $environment);
    fail("cannot start PHP's web server", 1);
}

if (PHP_SAPI !== 'cli') {
    webhook();
    return;
}
$arguments = array_slice($argv, 1);
$number = ['order' => $arguments[3] ?? '', 'receive' => $arguments[1] ?? ''][$arguments[0] ?? ''] ?? '0';
$answer = match (ctype_digit($number) ? [$arguments[0] ?? '', count($arguments)] : null) {
    ['order', 4] => order($arguments[1], $arguments[2], (int) $arguments[3]),
    ['show', 2] => show($arguments[1]),
    ['redeliver', 2] => signed('POST', API . '/topups/' . rawurlencode($arguments[1]) . '/redeliver'),
    ['options', 1] => signed('GET', API . '/options'),
    ['webhook', 2] => signed('PUT', API . '/webhook', ['url' => $arguments[1]]),
    ['receive', 2] => receive($arguments[1]),
    default => fail('usage: esim.php order|show|redeliver|options|webhook|receive …; see the head of this file'),
};
[$status, $code, $body] = $answer;
if ($status === 0) {
    fail("no answer that can be read: $body", 1);
}
echo $body, "\n";
if ($status < 200 || $status > 299) {
    fail("HTTP status $status $code", 1);
}
