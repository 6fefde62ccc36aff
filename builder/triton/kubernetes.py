# SPDX-License-Identifier: Apache-2.0
"""The server for Kubernetes: a Deployment with probes that ask the models, a Service, and who may reach them."""

from __future__ import annotations

import json
from collections.abc import Sequence

MANIFEST = "kubernetes.yaml"
TEMPLATE = """\
# Written by `padfree triton`; docs/guide/operating.md of padfree explains it. Image, claim, memory and replicas are
# yours to set. Apply: kubectl apply -f FOLDER/kubernetes.yaml
apiVersion: apps/v1
kind: Deployment
metadata:
  name: padfree-triton
  labels: {{app: padfree-triton}}
spec:
  replicas: 1
  selector:
    matchLabels: {{app: padfree-triton}}
  template:
    metadata:
      labels: {{app: padfree-triton}}
      annotations: {{prometheus.io/scrape: "true", prometheus.io/port: "8002"}}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 60  # more than preStop and --exit-timeout-secs together
      containers:
      - name: triton
        image: padfree-triton:latest  # of the Dockerfile beside this file, in your registry
        args: {command}  # the image's own entry point stays
        ports:
        - {{name: http, containerPort: 8000}}
        - {{name: grpc, containerPort: 8001}}
        - {{name: metrics, containerPort: 8002}}
        startupProbe:  # loading and warm-up
          httpGet: {{path: /v2/health/ready, port: http}}
          periodSeconds: 10
          failureThreshold: 60
        readinessProbe:
          httpGet: {{path: /v2/health/ready, port: http}}
          periodSeconds: 5
          timeoutSeconds: 5
        livenessProbe:  # asks every model for an answer: a server calls models ready whose processes are gone
          exec:
            command: {probe}
          periodSeconds: 30
          timeoutSeconds: 60
          failureThreshold: 2
        lifecycle:
          preStop:  # callers learn that the pod is gone before the server stops taking requests
            exec:
              command: ["sleep", "10"]
        resources:
          requests: {{cpu: "4", memory: 8Gi}}
          limits: {{{limits}}}
        securityContext:
          allowPrivilegeEscalation: false
          capabilities: {{drop: [ALL]}}
        volumeMounts:
        - {{name: models, mountPath: /models, readOnly: true}}
        - {{name: shm, mountPath: /dev/shm}}
      volumes:
      - name: models
        persistentVolumeClaim: {{claimName: padfree-models, readOnly: true}}  # holds this folder
      - name: shm  # the Python backend hands tensors over in shared memory; it counts as the container's memory
        emptyDir: {{medium: Memory, sizeLimit: 1Gi}}
---
apiVersion: v1
kind: Service
metadata:
  name: padfree-triton
spec:
  selector: {{app: padfree-triton}}
  ports:
  - {{name: http, port: 8000, targetPort: http}}
  - {{name: grpc, port: 8001, targetPort: grpc}}
---
# Whoever calls the server is trusted with all of its protocols: only pods with this label, and the monitoring's.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: padfree-triton
spec:
  podSelector:
    matchLabels: {{app: padfree-triton}}
  policyTypes: [Ingress]
  ingress:
  - from:
    - podSelector:
        matchLabels: {{padfree-triton-access: "true"}}
    ports:
    - {{port: 8000}}
    - {{port: 8001}}
  - from:
    - namespaceSelector:
        matchLabels: {{kubernetes.io/metadata.name: monitoring}}
    ports:
    - {{port: 8002}}
"""


def manifest(command: Sequence[str], probe: Sequence[str], *, gpus: int) -> str:
    """The manifest of a server.

    Args:
        command: what starts it.
        probe: what asks its models for answers.
        gpus: how many GPUs it needs.
    """
    limits = "memory: 8Gi" + (f", nvidia.com/gpu: {gpus}" if gpus else "")
    return TEMPLATE.format(command=json.dumps([*command]), probe=json.dumps([*probe]), limits=limits)
