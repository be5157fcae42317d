{{- define "fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{/* Labels that select: a dict of root and component. */}}
{{- define "selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "labels" -}}
{{ include "selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* A dict of root and image, one of values.images. */}}
{{- define "image" -}}
image: {{ printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .image.pullPolicy | default "IfNotPresent" }}
{{- end -}}

{{/* All pods: no rights, one group for the files in the volume of engines. User 10001 is that of Dockerfile.gateway. */}}
{{- define "podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* Of NVIDIA's images, whose entry point prepares the driver's compatibility libraries in their own file system. */}}
{{- define "nvidiaSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "claim" -}}
{{ .Values.engines.existingClaim | default (printf "%s-engines" (include "fullname" .)) }}
{{- end -}}

{{/* What the engines are made of. The build leaves it in the volume when it is done; servers wait for theirs. */}}
{{- define "buildId" -}}
{{ dict "models" .Values.models "precision" .Values.modelPrecision "image" .Values.images.builder "volume" .Values.modelVolume "resources" .Values.engineBuild "version" .Chart.AppVersion | toJson | sha256sum | trunc 10 }}
{{- end -}}

{{- define "waitForEngines" -}}
- name: wait-for-engines
  {{- include "image" (dict "root" . "image" .Values.images.gateway) | nindent 2 }}
  command: [sh, -c, 'until [ "$(cat /engines/built 2>/dev/null)" = "$0" ]; do sleep 2; done', {{ include "buildId" . | quote }}]
  {{- include "containerSecurity" . | nindent 2 }}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - {name: engines, mountPath: /engines, readOnly: true}
{{- end -}}
