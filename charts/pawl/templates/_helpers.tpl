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

{{/* Secret with the datastore's certificate: tls.crt, tls.key and the ca.crt that it is trusted by. */}}
{{- define "pawl.datastoreTls" -}}
{{- .Values.datastore.tls.existingSecret | default (printf "%s-datastore-tls" .Release.Name) }}
{{- end }}

{{/* Secret with the datastore's keys. */}}
{{- define "pawl.datastoreKeys" -}}
{{- .Values.datastore.encryption.existingSecret | default (printf "%s-datastore-keys" .Release.Name) }}
{{- end }}

{{/* An image by digest where one is given, otherwise by tag. */}}
{{- define "pawl.image" -}}
{{- if .image.digest }}{{ .image.repository }}@{{ .image.digest }}{{ else }}{{ .image.repository }}:{{ .image.tag | default .chart.AppVersion }}{{ end }}
{{- end }}
