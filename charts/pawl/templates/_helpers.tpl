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

{{/* Secret with the datastore's certificate: tls.crt, tls.key and the ca.crt of its authority. */}}
{{- define "pawl.datastoreTls" -}}
{{- .Values.datastore.tls.existingSecret | default (printf "%s-datastore-certificate" .Release.Name) }}
{{- end }}

{{/* Secret with the datastore's keys. */}}
{{- define "pawl.datastoreKeys" -}}
{{- .Values.datastore.encryption.existingSecret | default (printf "%s-datastore-keyring" .Release.Name) }}
{{- end }}

{{/* Secret whose UID is the cluster's id, with the id of its store. */}}
{{- define "pawl.datastoreIdentity" -}}
{{- printf "%s-datastore-identity" .Release.Name }}
{{- end }}

{{/* The minor release, which agents must match. */}}
{{- define "pawl.minor" -}}
{{- regexFind "^[0-9]+\\.[0-9]+" .Chart.AppVersion }}
{{- end }}

{{/* An image by digest if one is set, otherwise by tag. */}}
{{- define "pawl.image" -}}
{{- if .image.digest }}{{ .image.repository }}@{{ .image.digest }}{{ else }}{{ .image.repository }}:{{ .image.tag | default .chart.AppVersion }}{{ end }}
{{- end }}

