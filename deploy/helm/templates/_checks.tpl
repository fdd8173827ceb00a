{{/* What no schema can say: values that contradict each other, and settings that no program reads or that it would refuse at its
     start. All of them are named at once. */}}
{{- define "esim.checks" -}}
{{- $values := .Values -}}
{{- $wrong := list -}}
{{- if and $values.sandbox.enabled (not (has "sandbox" $values.providers)) -}}
{{- $wrong = append $wrong "sandbox.enabled runs the sandbox provider, from which nothing would be bought: add sandbox to `providers`, or set sandbox.enabled to false" -}}
{{- end -}}
{{- range $provider := without $values.providers "sandbox" -}}
{{- $url := printf "%s_URL" ($provider | upper | replace "-" "_") -}}
{{- if and (not $values.providersSecret) (not (get $values.settings.provisioner $url)) -}}
{{- $wrong = append $wrong (printf "providers names %s, of which no account is known: set providersSecret, or remove %s from `providers`" $provider $provider) -}}
{{- end -}}
{{- end -}}
{{- range $stage := list "ingress" "provisioner" "notifier" -}}
{{- $scaling := get $values.scaling $stage -}}
{{- if gt (int $scaling.min) (int $scaling.max) -}}
{{- $wrong = append $wrong (printf "scaling.%s: min (%d) is more than max (%d)" $stage (int $scaling.min) (int $scaling.max)) -}}
{{- end -}}
{{- if and (ne $stage "ingress") (gt (int $values.scaling.fallback) (int $scaling.max)) -}}
{{- $wrong = append $wrong (printf "scaling.fallback (%d) is more than scaling.%s.max (%d)" (int $values.scaling.fallback) $stage (int $scaling.max)) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $values.http.kind "Gateway") (not $values.http.parentRefs) -}}
{{- $wrong = append $wrong "http.kind is Gateway, but http.parentRefs names none: no request would arrive" -}}
{{- end -}}
{{- if and $values.postgres.enabled $values.postgres.backup.enabled (not $values.postgres.backup.configuration.destinationPath) -}}
{{- $wrong = append $wrong "postgres.backup.enabled is true, but postgres.backup.configuration.destinationPath names no bucket" -}}
{{- end -}}
{{- if and $values.console.openid (not $values.settings.console.OIDC_ISSUER) -}}
{{- $wrong = append $wrong "console.openid lets the console reach an OpenID provider, but settings.console.OIDC_ISSUER names none" -}}
{{- end -}}
{{- $known := .Files.Get "files/settings.yaml" | fromYaml -}}
{{- /* What the chart sets by other values. Ports are those of its Services and probes. */ -}}
{{- $own := dict "LISTEN" "the chart sets it" "ADMIN_LISTEN" "the chart sets it" "NATS_URL" "set nats.url" "NATS_CA_FILE" "set nats.caSecret"
  "PROVIDERS" "set providers" "PUBLIC_URL" "set publicUrl" -}}
{{- range $section, $settings := $values.settings -}}
{{- $readers := list $section -}}
{{- if eq $section "common" }}{{ $readers = list "ingress" "provisioner" "notifier" "console" "sandbox" }}{{ end -}}
{{- if eq $section "stages" }}{{ $readers = list "ingress" "provisioner" "notifier" }}{{ end -}}
{{- range $name, $value := $settings -}}
{{- $setting := get $known (trimSuffix "_FILE" $name) | default (get $known $name) -}}
{{- $is_account := false -}}
{{- if has "provisioner" $readers -}}
{{- range $values.providers }}{{ if hasPrefix (printf "%s_" (upper . | replace "-" "_")) $name }}{{ $is_account = true }}{{ end }}{{ end -}}
{{- end -}}
{{- if hasKey $own $name -}}
{{- $wrong = append $wrong (printf "settings.%s.%s: %s" $section $name (get $own $name)) -}}
{{- else if $setting -}}
{{- $read := list -}}
{{- range $setting.of }}{{ if has . $readers }}{{ $read = append $read . }}{{ end }}{{ end -}}
{{- $text := toString $value -}}
{{- if not $read -}}
{{- $wrong = append $wrong (printf "settings.%s.%s: it is a setting of %s" $section $name (join ", " $setting.of)) -}}
{{- else if or (kindIs "invalid" $value) (hasSuffix "_FILE" $name) -}}
{{- else if eq $setting.kind "secret" -}}
{{- $wrong = append $wrong (printf "settings.%s.%s: it is a secret, and whoever may read config maps would read it: put it into the secret %s" $section $name (replace "PROGRAM" $section $setting.secret)) -}}
{{- else if and (eq $setting.kind "duration") (not (regexMatch "^(0|([0-9]+ *(ns|nsec|us|usec|ms|msec|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|wk|weeks?|M|months?|y|years?) *)+)$" $text)) -}}
{{- $wrong = append $wrong (printf "settings.%s.%s is %q: write a duration like 2s or 500ms" $section $name $text) -}}
{{- else if and (eq $setting.kind "number") (not (regexMatch "^[0-9]+$" $text)) -}}
{{- $wrong = append $wrong (printf "settings.%s.%s is %q: write a whole number, with quotes if it is large" $section $name $text) -}}
{{- else if and (eq $setting.kind "truth") (not (has $text (list "true" "false"))) -}}
{{- $wrong = append $wrong (printf "settings.%s.%s is %q: write true or false" $section $name $text) -}}
{{- end -}}
{{- else if or (eq $name "PGPASSWORD") (and $is_account (not (regexMatch "_(URL|FILE)$" $name))) -}}
{{- $secret := ternary "esim-db-PROGRAM" ($values.providersSecret | default "that providersSecret names") (eq $name "PGPASSWORD") -}}
{{- $wrong = append $wrong (printf "settings.%s.%s: it is a secret, and whoever may read config maps would read it: put it into the secret %s" $section $name (replace "PROGRAM" $section $secret)) -}}
{{- else if not (or $is_account (regexMatch "^(OTEL_|PG|TOKIO_|RUST_|SSL_CERT_|(HTTPS?|ALL|NO)_PROXY$)" $name)) -}}
{{- $wrong = append $wrong (printf "settings.%s.%s: no program has this setting (docs/settings.md lists them)" $section $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with $wrong }}{{ fail (printf "\n- %s" (join "\n- " .)) }}{{ end -}}
{{- end -}}
