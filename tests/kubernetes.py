"""JSON schemas of the objects in examples/: the fields that their definitions have, and the types of those.

From the definitions of JobSet v1alpha2 (kubernetes-sigs/jobset at 08dfbdfd, 18 August 2026) and of PyTorchJob v1
(kubeflow/training-operator v1.9.0), and from the API reference of Kubernetes for Job batch/v1 and Service v1. A field
that is not known at its place is refused, as `kubectl apply --validate=strict` does. What no example uses has a name
and no content.
"""

from __future__ import annotations

from typing import Any

_TYPES = {"s": "string", "i": "integer", "b": "boolean", "o": "object", "a": "array"}


def _closed(names: str, required: tuple[str, ...] = (), **known: dict[str, Any]) -> dict[str, Any]:
    """An object with these fields and no others: ``name:s``, by the first letter of its type. ``known``: what fields
    hold."""
    pairs = (name.split(":") for name in names.split())
    properties = {name: {"type": _TYPES[letter]} for name, letter in pairs}
    assert set(known) <= set(properties)
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties | known,
    }


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_STRINGS = _array({"type": "string"})
_QUANTITIES = {"type": "object", "additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}
_METADATA = _closed("name:s namespace:s generateName:s labels:o annotations:o")

_REFERENCE = _closed("name:s optional:b")
_ENV = _closed(
    "name:s value:s valueFrom:o",
    ("name",),
    valueFrom=_closed(
        "configMapKeyRef:o fieldRef:o resourceFieldRef:o secretKeyRef:o",
        fieldRef=_closed("apiVersion:s fieldPath:s", ("fieldPath",)),
    ),
)
_CONTAINER = _closed(
    "args:a command:a env:a envFrom:a image:s imagePullPolicy:s lifecycle:o livenessProbe:o name:s ports:a "
    "readinessProbe:o resizePolicy:a resources:o restartPolicy:s securityContext:o startupProbe:o stdin:b stdinOnce:b "
    "terminationMessagePath:s terminationMessagePolicy:s tty:b volumeDevices:a volumeMounts:a workingDir:s",
    ("name",),
    args=_STRINGS,
    command=_STRINGS,
    env=_array(_ENV),
    envFrom=_array(_closed("configMapRef:o prefix:s secretRef:o", configMapRef=_REFERENCE, secretRef=_REFERENCE)),
    resources=_closed("claims:a limits:o requests:o", limits=_QUANTITIES, requests=_QUANTITIES),
    volumeMounts=_array(
        _closed(
            "mountPath:s mountPropagation:s name:s readOnly:b recursiveReadOnly:s subPath:s subPathExpr:s",
            ("mountPath", "name"),
        )
    ),
)
_VOLUME = _closed(
    "configMap:o csi:o downwardAPI:o emptyDir:o ephemeral:o hostPath:o image:o name:s nfs:o persistentVolumeClaim:o "
    "projected:o secret:o",
    ("name",),
    persistentVolumeClaim=_closed("claimName:s readOnly:b", ("claimName",)),
)
_POD = _closed(
    "activeDeadlineSeconds:i affinity:o automountServiceAccountToken:b containers:a dnsConfig:o dnsPolicy:s "
    "enableServiceLinks:b ephemeralContainers:a hostAliases:a hostIPC:b hostNetwork:b hostPID:b hostUsers:b hostname:s "
    "imagePullSecrets:a initContainers:a nodeName:s nodeSelector:o os:o overhead:o preemptionPolicy:s priority:i "
    "priorityClassName:s readinessGates:a resourceClaims:a restartPolicy:s runtimeClassName:s schedulerName:s "
    "schedulingGates:a securityContext:o serviceAccount:s serviceAccountName:s setHostnameAsFQDN:b "
    "shareProcessNamespace:b subdomain:s terminationGracePeriodSeconds:i tolerations:a topologySpreadConstraints:a "
    "volumes:a",
    ("containers",),
    containers=_array(_CONTAINER),
    initContainers=_array(_CONTAINER),
    volumes=_array(_VOLUME),
)
_TEMPLATE = _closed("metadata:o spec:o", ("spec",), metadata=_METADATA, spec=_POD)
_JOB = _closed(
    "activeDeadlineSeconds:i backoffLimit:i backoffLimitPerIndex:i completionMode:s completions:i managedBy:s "
    "manualSelector:b maxFailedIndexes:i parallelism:i podFailurePolicy:o podReplacementPolicy:s selector:o "
    "successPolicy:o suspend:b template:o ttlSecondsAfterFinished:i",
    ("template",),
    template=_TEMPLATE,
)
_JOBSET = _closed(
    "coordinator:o failurePolicy:o managedBy:s network:o replicatedJobs:a startupPolicy:o successPolicy:o suspend:b "
    "ttlSecondsAfterFinished:i volumeClaimPolicies:a",
    failurePolicy=_closed("maxRestarts:i restartStrategy:s rules:a"),
    replicatedJobs=_array(
        _closed(
            "dependsOn:a groupName:s name:s replicas:i template:o",
            ("name", "template"),
            template=_closed("metadata:o spec:o", metadata=_METADATA, spec=_JOB),
        )
    ),
)
_PYTORCHJOB = _closed(
    "elasticPolicy:o nprocPerNode:s pytorchReplicaSpecs:o runPolicy:o",
    ("pytorchReplicaSpecs",),
    pytorchReplicaSpecs={
        "type": "object",
        "additionalProperties": _closed("replicas:i restartPolicy:s template:o", template=_TEMPLATE),
    },
)


def _object(api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    made = _closed("apiVersion:s kind:s metadata:o spec:o", ("apiVersion", "kind", "metadata", "spec"), spec=spec)
    made["properties"] |= {"apiVersion": {"const": api_version}, "kind": {"const": kind}, "metadata": _METADATA}
    return made


_SERVICE = _closed(
    "allocateLoadBalancerNodePorts:b clusterIP:s clusterIPs:a externalIPs:a externalName:s externalTrafficPolicy:s "
    "healthCheckNodePort:i internalTrafficPolicy:s ipFamilies:a ipFamilyPolicy:s loadBalancerClass:s loadBalancerIP:s "
    "loadBalancerSourceRanges:a ports:a publishNotReadyAddresses:b selector:o sessionAffinity:s "
    "sessionAffinityConfig:o trafficDistribution:s type:s",
    selector={"type": "object", "additionalProperties": {"type": "string"}},
)

SCHEMAS = {
    "Job": _object("batch/v1", "Job", _JOB),
    "Service": _object("v1", "Service", _SERVICE),
    "JobSet": _object("jobset.x-k8s.io/v1alpha2", "JobSet", _JOBSET),
    "PyTorchJob": _object("kubeflow.org/v1", "PyTorchJob", _PYTORCHJOB),
}
"""By the kind of the object."""
