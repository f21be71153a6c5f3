{{- define "pawl.labels" -}}
app.kubernetes.io/name: pawl
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "pawl.selector" -}}
app.kubernetes.io/name: pawl
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end }}

{{- define "pawl.datastoreSelector" -}}
app.kubernetes.io/name: pawl
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: datastore
{{- end }}

{{- define "pawl.sourcesSelector" -}}
app.kubernetes.io/name: pawl
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: sources
{{- end }}

{{- define "pawl.serverSelector" -}}
app.kubernetes.io/name: pawl
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end }}

{{/* Secret with the datastore's certificate: tls.crt, tls.key and the ca.crt that it is trusted by. */}}
{{- define "pawl.datastoreTls" -}}
{{- .Values.datastore.tls.existingSecret | default (printf "%s-datastore-certificate" .Release.Name) }}
{{- end }}

{{/* Secret with the datastore's keys. */}}
{{- define "pawl.datastoreKeys" -}}
{{- .Values.datastore.encryption.existingSecret | default (printf "%s-datastore-keyring" .Release.Name) }}
{{- end }}

{{/* The minor release, which agents have to be of. */}}
{{- define "pawl.minor" -}}
{{- regexFind "^[0-9]+\\.[0-9]+" .Chart.AppVersion }}
{{- end }}

{{/* An image by digest where one is given, otherwise by tag. */}}
{{- define "pawl.image" -}}
{{- if .image.digest }}{{ .image.repository }}@{{ .image.digest }}{{ else }}{{ .image.repository }}:{{ .image.tag | default .chart.AppVersion }}{{ end }}
{{- end }}

{{/* A Secret that an earlier chart made, as it is. Left out, Helm would delete it before the datastore has taken it over, and could not
     go back to that chart. */}}
{{- define "pawl.formerSecret" -}}
{{- $root := index . 0 }}
{{- $name := printf "%s-datastore-%s" $root.Release.Name (index . 1) }}
{{- $former := lookup "v1" "Secret" $root.Release.Namespace $name }}
{{- if $former.data }}
---
apiVersion: v1
kind: Secret
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "pawl.labels" $root | nindent 4 }}
  annotations: {helm.sh/resource-policy: keep}
type: {{ $former.type }}
data: {{- toYaml $former.data | nindent 2 }}
{{- end }}
{{- end }}
