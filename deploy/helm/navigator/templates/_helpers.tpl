{{- define "navigator.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end }}{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}
{{- /* Secret with the certificate that the API server serves. */}}
{{- define "navigator.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled }}navigator-apiserver-certificate{{ else }}{{ .Values.tls.secretName | default "navigator-apiserver-tls" }}{{ end }}
{{- end }}
{{- /* How pods of a role, `role`, are spread: over pods of that role, unless somebody says over which. */}}
{{- define "navigator.spread" -}}
{{- $own := dict "matchLabels" (dict "app.kubernetes.io/name" "navigator" "app.kubernetes.io/component" .role "app.kubernetes.io/part-of" "navigator") }}
{{- $all := list }}
{{- range .constraints }}{{ $all = append $all (ternary . (merge (dict "labelSelector" $own) .) (hasKey . "labelSelector")) }}{{ end }}
{{- toYaml $all }}
{{- end }}
{{- /* Ports of the etcd members, each once. */}}
{{- define "navigator.etcdPorts" -}}
{{- $ports := list }}
{{- range .Values.store.etcd.servers }}{{ $ports = append $ports (regexFind ":[0-9]+/*$" . | trimAll ":/" | default (ternary "443" "80" (hasPrefix "https:" .))) }}{{ end }}
{{- join "," (uniq $ports) }}
{{- end }}
