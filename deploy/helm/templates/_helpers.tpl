{{/* The version of the programs. */}}
{{- define "esim.version" -}}
{{ .Values.images.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* The image of a program: dict "root" "program". */}}
{{- define "esim.image" -}}
{{- $images := .root.Values.images -}}
{{- $digest := get $images.digests .program -}}
{{- if $digest -}}
{{ $images.registry }}/{{ .program }}@{{ $digest }}
{{- else -}}
{{ $images.registry }}/{{ .program }}:{{ include "esim.version" .root }}
{{- end -}}
{{- end -}}

{{- define "esim.publicUrl" -}}
{{ .Values.publicUrl | default (printf "https://%s" .Values.host) }}
{{- end -}}

{{/* The settings of a config map, as YAML: those of the base, what follows from other values, and those of `settings`.
     A setting that is null is left out. dict "root" "name" "data". */}}
{{- define "esim.settings" -}}
{{- $values := .root.Values -}}
{{- $data := deepCopy .data -}}
{{- if eq .name "stages" -}}
{{- $_ := set $data "NATS_URL" $values.nats.url -}}
{{- if $values.nats.caSecret }}{{ $_ := set $data "NATS_CA_FILE" "/run/secrets/nats/ca.crt" }}{{ end -}}
{{- end -}}
{{- if has .name (list "ingress" "provisioner") }}{{ $_ := set $data "PROVIDERS" (join "," $values.providers) }}{{ end -}}
{{- if has .name (list "ingress" "notifier") }}{{ $_ := set $data "PUBLIC_URL" (include "esim.publicUrl" .root) }}{{ end -}}
{{- range $key, $value := get $values.settings .name -}}
{{- if kindIs "invalid" $value }}{{ $_ := unset $data $key }}{{ else }}{{ $_ := set $data $key (toString $value) }}{{ end -}}
{{- end -}}
{{ toYaml $data }}
{{- end -}}

{{/* What a container reads from config maps, as a checksum. A changed setting so replaces the pods of those programs that read
     it, and no others. dict "root" "container". */}}
{{- define "esim.checksum" -}}
{{- $root := .root -}}
{{- $read := list }}{{ range .container.envFrom }}{{ $read = append $read .configMapRef.name }}{{ end -}}
{{- $settings := dict -}}
{{- range $document := splitList "\n---\n" (include "esim.documents" (dict "root" $root "file" "base")) -}}
{{- $object := fromYaml $document -}}
{{- if eq (toString $object.kind) "ConfigMap" -}}
{{- $name := $object.metadata.name -}}
{{- if has $name $read }}{{ $_ := set $settings $name (include "esim.settings" (dict "root" $root "name" $name "data" $object.data)) }}{{ end -}}
{{- end -}}
{{- end -}}
{{ toJson $settings | sha256sum }}
{{- end -}}

{{/* The documents of a file of deploy/kubernetes, with the names that differ between installations. */}}
{{- define "esim.documents" -}}
{{- $values := .root.Values -}}
{{- .root.Files.Get (printf "files/%s.yaml" .file)
  | replace "esim.example.com" $values.host
  | replace "metadata.name: traefik" (printf "metadata.name: %s" $values.namespaces.http)
  | replace "metadata.name: observability" (printf "metadata.name: %s" $values.namespaces.observability)
  | replace "metadata.name: kube-system" (printf "metadata.name: %s" $values.namespaces.dns)
  | replace "metadata.name: cnpg-system" (printf "metadata.name: %s" $values.namespaces.postgresOperator) -}}
{{- end -}}

{{/* Appends what a patch of deploy/kubernetes adds to a pod: dict "root" "object" "patch". */}}
{{- define "esim.patch" -}}
{{- $object := .object -}}
{{- range $document := splitList "\n---\n" (include "esim.documents" (dict "root" .root "file" .patch)) -}}
{{- $patch := fromYaml $document -}}
{{- if eq $patch.metadata.name $object.metadata.name -}}
{{- $to := $object.spec.template.spec -}}
{{- $from := $patch.spec.template.spec -}}
{{- $_ := set $to "volumes" (concat ($to.volumes | default list) ($from.volumes | default list)) -}}
{{- $container := first $to.containers -}}
{{- $more := first $from.containers -}}
{{- range $list := list "env" "volumeMounts" -}}
{{- $_ := set $container $list (concat (get $container $list | default list) (get $more $list | default list)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A Deployment or a Job: image, secrets, resources. dict "root" "object". */}}
{{- define "esim.pods" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $object := .object -}}
{{- $name := $object.metadata.name -}}
{{- $template := $object.spec.template -}}
{{- $_ := set $template.metadata.labels "app.kubernetes.io/part-of" "esim" -}}
{{- $_ := set $template.metadata.labels "app.kubernetes.io/version" (include "esim.version" $root) -}}
{{- $pod := $template.spec -}}
{{- $container := first $pod.containers -}}
{{- $_ := set $container "image" (include "esim.image" (dict "root" $root "program" (last (splitList "/" $container.image)))) -}}
{{- with $values.images.pullPolicy }}{{ $_ := set $container "imagePullPolicy" . }}{{ end -}}
{{- with $values.images.pullSecrets -}}
{{- $secrets := list }}{{ range . }}{{ $secrets = append $secrets (dict "name" .) }}{{ end -}}
{{- $_ := set $pod "imagePullSecrets" $secrets -}}
{{- end -}}
{{- with get $values.resources $name }}{{ $_ := set $container "resources" . }}{{ end -}}
{{- if and $values.priorityClassName (ne $name "sandbox") }}{{ $_ := set $pod "priorityClassName" $values.priorityClassName }}{{ end -}}
{{- if eq $object.kind "Deployment" -}}
{{- $_ := set $template.metadata "annotations" (dict "checksum/config" (include "esim.checksum" (dict "root" $root "container" $container))) -}}
{{- end -}}
{{- if and (eq $name "provisioner") $values.sandbox.enabled }}{{ include "esim.patch" (dict "root" $root "object" $object "patch" "patch-sandbox") }}{{ end -}}
{{- if and (eq $name "provisioner") $values.providersSecret }}{{ include "esim.patch" (dict "root" $root "object" $object "patch" "patch-providers") }}{{ end -}}
{{- if $values.nats.caSecret }}{{ include "esim.patch" (dict "root" $root "object" $object "patch" "patch-nats-ca") }}{{ end -}}
{{- if $values.console.activationCodes }}{{ include "esim.patch" (dict "root" $root "object" $object "patch" "patch-console-codes") }}{{ end -}}
{{- if $values.console.partnerKeys }}{{ include "esim.patch" (dict "root" $root "object" $object "patch" "patch-console-keys") }}{{ end -}}
{{- range $volume := $pod.volumes -}}
{{- if eq $volume.name "nats-ca" }}{{ $_ := set $volume.secret "secretName" $values.nats.caSecret }}{{ end -}}
{{- if eq $volume.name "providers" }}{{ $_ := set $volume.secret "secretName" $values.providersSecret }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Changes an object of deploy/kubernetes by the values. dict "root" "object". */}}
{{- define "esim.adapt" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $object := .object -}}
{{- $name := $object.metadata.name -}}
{{- $_ := set $object.metadata "namespace" $root.Release.Namespace -}}
{{- $labels := $object.metadata.labels | default dict -}}
{{- $_ := set $labels "app.kubernetes.io/part-of" "esim" -}}
{{- $_ := set $labels "app.kubernetes.io/version" (include "esim.version" $root) -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version) -}}
{{- $_ := set $object.metadata "labels" $labels -}}
{{- if has $object.kind (list "Cluster" "ObjectStore" "PersistentVolumeClaim") -}}
{{- /* Otherwise `helm uninstall`, or postgres.enabled=false, would delete the database with all orders. */ -}}
{{- $_ := set $object.metadata "annotations" (merge (dict "helm.sh/resource-policy" "keep") ($object.metadata.annotations | default dict)) -}}
{{- end -}}
{{- if eq $object.kind "ConfigMap" -}}
{{- $_ := set $object "data" (include "esim.settings" (dict "root" $root "name" $name "data" $object.data) | fromYaml) -}}
{{- else if eq $object.kind "Deployment" -}}
{{- include "esim.pods" (dict "root" $root "object" $object) -}}
{{- else if eq $object.kind "Job" -}}
{{- include "esim.pods" (dict "root" $root "object" $object) -}}
{{- $_ := set $object.metadata "name" (printf "migrate-%s" (include "esim.version" $root | replace "." "-")) -}}
{{- if $root.Release.IsUpgrade -}}
{{- /* An upgrade migrates before it replaces the stages. An installation cannot, because the database is part of it. Helm does
       not count a hook as part of the release, so `helm uninstall` would leave it, and an installation of the same version would
       be refused because of it. Therefore it goes when it has succeeded. */ -}}
{{- $hooks := dict "helm.sh/hook" "pre-upgrade" "helm.sh/hook-delete-policy" "before-hook-creation,hook-succeeded" -}}
{{- $_ := set $object.metadata "annotations" (merge $hooks ($object.metadata.annotations | default dict)) -}}
{{- end -}}
{{- else if eq $object.kind "HorizontalPodAutoscaler" -}}
{{- $scaling := get $values.scaling $name -}}
{{- $_ := set $object.spec "minReplicas" $scaling.min -}}
{{- $_ := set $object.spec "maxReplicas" $scaling.max -}}
{{- else if eq $object.kind "ScaledObject" -}}
{{- $scaling := get $values.scaling $name -}}
{{- $_ := set $object.spec "minReplicaCount" $scaling.min -}}
{{- $_ := set $object.spec "maxReplicaCount" $scaling.max -}}
{{- $_ := set $object.spec.fallback "replicas" $values.scaling.fallback -}}
{{- $_ := set (first $object.spec.triggers).metadata "serverAddress" $values.scaling.prometheus -}}
{{- else if eq $object.kind "Ingress" -}}
{{- with $values.http.className }}{{ $_ := set $object.spec "ingressClassName" . }}{{ end -}}
{{- with $values.http.tlsSecret }}{{ $_ := set $object.spec "tls" (list (dict "hosts" (list $values.host) "secretName" .)) }}{{ end -}}
{{- else if eq $object.kind "HTTPRoute" -}}
{{- $_ := set $object.spec "parentRefs" $values.http.parentRefs -}}
{{- else if eq $object.kind "Cluster" -}}
{{- $spec := $object.spec -}}
{{- range $key, $value := $values.postgres.spec -}}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $spec $key $value }}{{ end -}}
{{- end -}}
{{- if not $values.postgres.backup.enabled -}}
{{- /* Without an ObjectStore nothing would ever be archived, and PostgreSQL would keep its WAL until the disk is full. */ -}}
{{- $plugins := list -}}
{{- range $plugin := $spec.plugins }}{{ if ne (dig "parameters" "barmanObjectName" "" $plugin) "esim-db" }}{{ $plugins = append $plugins $plugin }}{{ end }}{{ end -}}
{{- if $plugins }}{{ $_ := set $spec "plugins" $plugins }}{{ else }}{{ $_ := unset $spec "plugins" }}{{ end -}}
{{- end -}}
{{- else if eq $object.kind "ObjectStore" -}}
{{- $_ := set $object.spec "configuration" (mergeOverwrite $object.spec.configuration $values.postgres.backup.configuration) -}}
{{- end -}}
{{- end -}}
