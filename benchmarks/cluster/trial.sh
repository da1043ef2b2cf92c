#!/usr/bin/env bash
# Tries deploy/kubernetes in a real cluster of two nodes, and says what it saw: trial.sh DIR [all-in-one] [cpu]
#
# DIR is a running cluster of shared/measure/kubernetes (1.20), whose nodes have the images slipway-server:0.1.0, slipway-dashboard:0.1.0
# and those of the component `engines`. CHANGE is a program through which the manifests go before they are applied. Where that release knows only an older version of an API, this is changed on the way.
set -euo pipefail
here=$(dirname "$(realpath "$0")") dir=$(realpath "$1"); shift
BODY='{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": ['$(seq -s, 0 63)']}]}'
RATE=${RATE:-10}
began=$SECONDS
k() { "$dir/kubectl" -n ml-serving "$@"; }
say() { echo "[$((SECONDS - began)) s] $*"; }
failed() { # what a person asks first
  k get pods,pv -o wide; k get events --sort-by=.lastTimestamp | tail -n 15; k logs -l app.kubernetes.io/name=slipway --tail 15 --prefix; exit 1
} >&2
rolled() { k rollout status "$1" --timeout "${2:-600s}" > /dev/null || failed; }
build() {
  "${KUBECTL:-kubectl}" kustomize "$here/$1" | ${CHANGE:-cat} | sed -e 's|^apiVersion: policy/v1$|apiVersion: policy/v1beta1|'
}
apply() { # 1.20 does not know every field, and leaves out those
  build "$1" | "$dir/kubectl" apply --validate=false -f - > "$dir/log/applied.txt"
}
folder() { "$dir/on" 1 install -d -o 10001 -g 10001 "/var/lib/trial/$1"; }
until_answers() { # ADDRESS [HEADER]
  for _ in $(seq 600); do
    "$dir/on" 1 curl -sf -m 5 ${2:+-H "$2"} "$1/v2/models/digits/infer" -d "$BODY" > "$dir/log/answer.json" && return
    sleep 0.5
  done
  failed
}
under_load() { # COMMAND...: runs it while requests are sent
  rm -f "$dir/run/stop"
  "$dir/on" 1 python3 "$here/load.py" "http://$service:8000" digits "$BODY" "$RATE" "$dir/run/stop" > "$dir/log/load.txt" & local loader=$!
  sleep 3
  "$@" || { touch "$dir/run/stop"; failed; }
  sleep 5
  touch "$dir/run/stop"
  wait "$loader"
  cat "$dir/log/load.txt"
}
update() {
  k rollout restart deployment/slipway-inference-server > /dev/null
  rolled deployment/slipway-inference-server
}
drain() {
  "$dir/kubectl" drain node-2 --ignore-daemonsets --delete-emptydir-data --timeout 600s > "$dir/log/drain.txt" 2>&1
  rolled deployment/slipway-inference-server
}

for trial in "${@:-all-in-one cpu}"; do for trial in $trial; do case $trial in
  all-in-one)
    folder one
    say "all-in-one: apply -k on an empty cluster"
    at=$SECONDS
    apply all-in-one
    rolled statefulset/slipway
    token=$(k exec slipway-0 -- cat /data/infer_key)
    until_answers "http://$(k get service slipway -o jsonpath='{.spec.clusterIP}'):8000" "Authorization: Bearer $token"
    say "all-in-one: the first answer after $((SECONDS - at)) s: $(head -c 120 "$dir/log/answer.json")"
    k get pods -o wide
    at=$SECONDS
    k delete pod slipway-0 > /dev/null
    rolled statefulset/slipway
    say "all-in-one: the pod was deleted, and its successor on the same volume is ready after $((SECONDS - at)) s"
    build all-in-one | "$dir/kubectl" delete --ignore-not-found -f - > "$dir/log/deleted.txt"
    ;;
  cpu)
    folder shared
    "$dir/kubectl" create namespace ml-serving > /dev/null 2>&1 || true
    key() { openssl rand -hex 32; }
    k create secret generic slipway --from-literal=SLIPWAY_SECRET_KEY="$(key)" --from-literal=SLIPWAY_CONTROL_KEY="$(key)" \
      --from-literal=SLIPWAY_INFER_KEY="$(key)" --from-literal=SLIPWAY_ADMIN_PASSWORD="$(key)" \
      --from-literal=DATABASE_URL=postgres://slipway@postgresql/slipway --from-literal=REDIS_URL=redis://redis:6379/0 > /dev/null
    k create secret generic slipway-s3 --from-literal=AWS_ACCESS_KEY_ID=any --from-literal=AWS_SECRET_ACCESS_KEY=any > /dev/null
    say "cpu: apply -k"
    at=$SECONDS
    apply cpu
    for part in web worker watch; do rolled "deployment/slipway-$part"; done
    say "cpu: web, worker and watchers are ready after $((SECONDS - at)) s"
    rolled deployment/slipway-inference-server
    service=$(k get service slipway-inference-server -o jsonpath='{.spec.clusterIP}')
    until_answers "http://$service:8000"
    say "cpu: three servers are ready, and the first answer came, after $((SECONDS - at)) s"
    k get pods -o wide
    k exec deploy/slipway-watch -- python manage.py environments list
    say "headless names: $("$dir/on" 1 getent ahostsv4 slipway-inference-servers.ml-serving.svc.cluster.local | awk '/STREAM/ {print $1}' | xargs)"
    say "cpu: a rolling update of the servers under $RATE requests a second"
    under_load update
    say "cpu: a drain of node 2 under $RATE requests a second"
    under_load drain
    cat "$dir/log/drain.txt"
    "$dir/kubectl" uncordon node-2 > /dev/null
    say "cpu: pods now"
    k get pods -o wide
    ;;
esac; done; done
