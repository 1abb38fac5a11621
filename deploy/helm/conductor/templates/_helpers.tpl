{{- define "conductor.name" -}}
{{- printf "%s" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "conductor.selector" -}}
app.kubernetes.io/name: conductor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "conductor.labels" -}}
{{ include "conductor.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}
