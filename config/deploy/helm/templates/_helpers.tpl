{{- define "oncegate.name" -}}
{{- if contains "oncegate" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-oncegate" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "oncegate.selector" -}}
app.kubernetes.io/name: oncegate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "oncegate.labels" -}}
{{ include "oncegate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "oncegate.config" -}}
{{ .Values.existingConfigMap | default (include "oncegate.name" .) }}
{{- end }}

{{- define "oncegate.scheme" -}}
{{ if .Values.server.tlsSecret }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}
