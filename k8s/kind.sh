#!/usr/bin/env bash
# Runs Sluice on a local Kubernetes cluster in Docker (kind): kind.sh up | down. Reads k8s/ and changes only the kind
# cluster "sluice": every command names its context. Safe to run again; existing objects are kept.
# Needs 8 GB of memory for Docker, 30 GB of disk, and the tools that `tools` below checks.
set -euo pipefail
cd "$(dirname "$0")/.."
. k8s/versions.env

CLUSTER=sluice
CONTEXT=kind-$CLUSTER

main() {
  case "${1:-}" in
    up) up ;;
    down)
      need kind 'https://kind.sigs.k8s.io'
      kind delete cluster --name "$CLUSTER"
      ;;
    *) fail 'usage: kind.sh up, or kind.sh down' ;;
  esac
}

# Not joined by &&, which would disable `set -e` inside them.
up() {
  tools
  cluster
  images
  controllers
  secrets
  base
  airflow
  farewell
}

fail() {
  printf 'sluice: %s\n' "$1" >&2
  exit 2
}

say() {
  printf '\n== %s\n' "$1"
}

need() {
  command -v "$1" >/dev/null || fail "$1 is not on PATH. Install it: $2"
}

kube() {
  kubectl --context "$CONTEXT" "$@"
}

chart() {
  helm --kube-context "$CONTEXT" upgrade --install "$@"
}

tools() {
  need docker 'https://docs.docker.com/engine/install'
  need kind 'https://kind.sigs.k8s.io'
  need kubectl 'https://kubernetes.io/docs/tasks/tools'
  need helm 'https://helm.sh/docs/intro/install'
  docker info >/dev/null 2>&1 || fail 'docker does not answer. Start it, and check your permission to use it (docker info)'
  # Airflow's chart requires 3.19; kind enforces NetworkPolicies from 0.24 on.
  at_least helm 3.19 "$(helm version --template '{{.Version}}')"
  at_least kind 0.24 "$(kind version | cut -d ' ' -f 2)"
}

at_least() {
  local found=${3#v}
  [ "$(printf '%s\n' "$2" "$found" | sort -V | head -n 1)" = "$2" ] || fail "$1 is $found; $2 or newer is needed"
}

cluster() {
  say 'Cluster'
  if kind get clusters 2>/dev/null | grep -qx "$CLUSTER"; then
    echo "the cluster $CLUSTER exists"
  else
    kind create cluster --config k8s/overlays/kind/cluster.yaml --wait 120s
  fi
}

images() {
  say 'Images (the first time: 10 to 30 minutes)'
  local name
  for name in airflow worker; do
    docker build --file "k8s/images/$name.Dockerfile" --tag "sluice/$name:$SLUICE_IMAGES" .
  done
  # kind has no GPU: torch for the CPU has a tenth of the size.
  docker build --file k8s/images/trainer.Dockerfile --tag "sluice/trainer:$SLUICE_IMAGES" \
    --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
  docker build --file k8s/overlays/kind/store.Dockerfile --tag sluice/store:1.5.33 .
  kind load docker-image --name "$CLUSTER" sluice/store:1.5.33 \
    "sluice/airflow:$SLUICE_IMAGES" "sluice/worker:$SLUICE_IMAGES" "sluice/trainer:$SLUICE_IMAGES"
}

# Before the base, which has objects of their kinds; --wait, because their webhooks must answer by then.
controllers() {
  say 'JobSet, Kueue, Dask operator'
  chart jobset oci://registry.k8s.io/jobset/charts/jobset --version "$JOBSET_CHART" \
    --namespace jobset-system --create-namespace --values k8s/helm/jobset.yaml --wait --timeout 5m
  chart kueue oci://registry.k8s.io/kueue/charts/kueue --version "$KUEUE_CHART" \
    --namespace kueue-system --create-namespace --values k8s/helm/kueue.yaml --wait --timeout 5m
  kube apply --filename k8s/base/namespaces.yaml --filename k8s/base/priorities.yaml
  chart dask-operator dask-kubernetes-operator --repo https://helm.dask.org --version "$DASK_OPERATOR_CHART" \
    --namespace sluice-work --values k8s/helm/dask-operator.yaml
}

# Generated at random, once per cluster.
secrets() {
  say 'Secrets'
  if kube --namespace sluice get secret postgres >/dev/null 2>&1; then
    echo 'they exist'
    return
  fi
  local password
  password=$(random)
  secret sluice airflow-database "connection=postgresql+psycopg2://airflow:$password@postgres.sluice.svc:5432/airflow"
  secret sluice mlflow-database "uri=postgresql+psycopg2://airflow:$password@postgres.sluice.svc:5432/mlflow"
  secret sluice airflow-fernet-key "fernet-key=$(head -c 32 /dev/urandom | base64 | tr '+/' '-_')"
  secret sluice airflow-api-secret-key "api-secret-key=$(random)"
  secret sluice airflow-jwt-secret "jwt-secret=$(random)"
  secret sluice airflow-users "passwords.json={\"admin\": \"$(random)\", \"viewer\": \"$(random)\"}"
  # The S3 server of this cluster does not check keys, but its clients require them.
  secret sluice sluice-store 'AWS_ACCESS_KEY_ID=kind' "AWS_SECRET_ACCESS_KEY=$(random)"
  secret sluice-work sluice-store 'AWS_ACCESS_KEY_ID=kind' "AWS_SECRET_ACCESS_KEY=$(random)"
  # Created last: if it exists, all secrets exist.
  secret sluice postgres "password=$password"
}

random() {
  head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n'
}

# secret NAMESPACE NAME KEY=VALUE...: passes values on standard input, so that they do not appear in process lists.
secret() {
  local namespace=$1 name=$2 pair
  shift 2
  {
    printf 'apiVersion: v1\nkind: Secret\nmetadata: {namespace: %s, name: %s}\nstringData:\n' "$namespace" "$name"
    for pair in "$@"; do
      printf "  %s: '%s'\n" "${pair%%=*}" "${pair#*=}"
    done
  } | kube apply --filename -
}

base() {
  say 'Postgres, store, MLflow, queues, rights, network'
  kube apply --kustomize k8s/overlays/kind
  kube --namespace sluice rollout status statefulset/postgres statefulset/store --timeout 5m
  # Creates the bucket; a repeated PUT changes nothing.
  kube --namespace sluice exec store-0 -- python -c \
    'from urllib.request import *; urlopen(Request("http://127.0.0.1:4566/sluice", method="PUT"))'
  kube --namespace sluice rollout status deployment/mlflow --timeout 10m
}

airflow() {
  say 'Airflow'
  chart airflow airflow --repo https://airflow.apache.org --version "$AIRFLOW_CHART" --namespace sluice \
    --values k8s/helm/airflow.yaml --values k8s/helm/airflow-kind.yaml --wait --timeout 15m
  kube --namespace sluice exec deployment/airflow-api-server --container api-server -- \
    airflow pools import dags/pools.json
}

farewell() {
  cat <<EOF

Sluice is running. Open it with

  kubectl --context $CONTEXT --namespace sluice port-forward service/airflow-api-server 8080
  kubectl --context $CONTEXT --namespace sluice port-forward service/mlflow 5000

and then http://localhost:8080 (Airflow) and http://localhost:5000 (MLflow). The user is admin; its password:

  kubectl --context $CONTEXT --namespace sluice get secret airflow-users -o jsonpath='{.data.passwords\\.json}' | base64 -d

Remove everything with: make kind-down
EOF
}

main "$@"
