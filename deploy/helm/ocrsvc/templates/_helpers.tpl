{{- define "ocrsvc.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "ocrsvc.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ocrsvc.labels" -}}
{{ include "ocrsvc.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "ocrsvc.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- /* What Pod Security "restricted" asks of each container. */ -}}
{{- define "ocrsvc.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "ocrsvc.podSecurity" -}}
runAsNonRoot: true
{{- if .Values.runAsUser }}
runAsUser: {{ int .Values.runAsUser }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- /* Not empty where there may be more than one replica. */ -}}
{{- define "ocrsvc.several" -}}
{{- if or .Values.keda.enabled (gt (int .Values.replicas) 1) }}true{{ end -}}
{{- end }}
