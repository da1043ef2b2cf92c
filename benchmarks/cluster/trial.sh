#!/usr/bin/env bash
# Tries deploy/kubernetes in a real cluster of two nodes, and says what it saw: trial.sh DIR [TRIAL...]
#
# DIR is a running cluster of shared/measure/kubernetes (1.20), whose nodes have the images slipway-server:0.1.0, slipway-dashboard:0.1.0
# and those of the component `engines`. Where that release knows only an older version of an API, it is changed on the way. Without a
# name all trials run, in this order; those from `update` to `burst` need what `cpu` has installed. PostgreSQL, Redis and the bucket
# are on node 1, and node 2 is the one that is lost; with CHANGE='sed s/\(hostname:.\)node-1/\1node-2/' they are on node 2.
#
#   REQUESTS   the least number of requests of each of `update`, `drain` and `both`, which are repeated until they are sent
#   BUSY       the percentage of the requested CPU at which `burst` adds servers; 40 by default
#   LOAD       what load.py sends meanwhile, such as "kept=6 new=1 grpc=1 watched=1 pause=5"
#   PYTHON     has tritonclient; the environment of the repository by default
#   CHANGE     a program through which the manifests go before they are applied
set -euo pipefail
here=$(dirname "$(realpath "$0")") dir=$(realpath "$1"); shift
PYTHON=${PYTHON:-$here/../../.venv/bin/python}
BODY='{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": ['$(seq -s, 0 63)']}]}'
server=slipway-inference-server labels=app.kubernetes.io/component=server
began=$SECONDS
k() { "$dir/kubectl" -n ml-serving "$@"; }
trap 'touch "$dir/run/stop" "$dir/run/more"' EXIT # what sends requests ends too
say() { echo "[$((SECONDS - began)) s, load $(cut -d. -f1 /proc/loadavg)] $*"; }
failed() { # what a person asks first
  k get pods,pv -o wide; k get events --sort-by=.lastTimestamp | tail -n 15; k logs -l app.kubernetes.io/name=slipway --tail 15 --prefix; exit 1
} >&2
rolled() { k rollout status "$1" --timeout "${2:-600s}" > /dev/null || failed; }
until_true() { # COMMAND...
  for _ in $(seq 1200); do "$@" > /dev/null 2>&1 && return; sleep 0.25; done
  failed
}
build() {
  "${KUBECTL:-kubectl}" kustomize "$here/$1" | ${CHANGE:-cat} | sed -e 's|^apiVersion: policy/v1$|apiVersion: policy/v1beta1|'
}
apply() { # 1.20 does not know every field, and leaves out those
  build "$1" | "$dir/kubectl" apply --validate=false -f - > "$dir/log/applied.txt"
}
remove() {
  "$dir/kubectl" delete --ignore-not-found namespace ml-serving > "$dir/log/deleted.txt"
  "$dir/kubectl" delete --ignore-not-found pv one shared >> "$dir/log/deleted.txt"
  for node in 1 2; do "$dir/on" $node rm -rf /var/lib/slipway; done # the cache of models of the bucket that is gone
}
folder() { "$dir/on" 1 rm -rf "/var/lib/trial/$1"; "$dir/on" 1 install -d -o 10001 -g 10001 "/var/lib/trial/$1"; }
secrets() {
  local key="openssl rand -hex 32"
  "$dir/kubectl" create namespace ml-serving --save-config > /dev/null
  k create secret generic slipway --from-literal=SLIPWAY_SECRET_KEY="$($key)" --from-literal=SLIPWAY_CONTROL_KEY="$($key)" \
    --from-literal=SLIPWAY_INFER_KEY="$($key)" --from-literal=SLIPWAY_ADMIN_PASSWORD="$($key)" \
    --from-literal=DATABASE_URL=postgres://slipway@postgresql/slipway --from-literal=REDIS_URL=redis://redis:6379/0 > /dev/null
  k create secret generic slipway-s3 --from-literal=AWS_ACCESS_KEY_ID=any --from-literal=AWS_SECRET_ACCESS_KEY=any > /dev/null
}
address() { k get service "$1" -o jsonpath='{.spec.clusterIP}'; }
answers() { # ADDRESS [HEADER]
  "$dir/on" 1 curl -sf -m 5 ${2:+-H "$2"} "http://$1:8000/v2/models/digits/infer" -d "$BODY" -o "$dir/log/answer.json"
}
restarts() { k get pods -o jsonpath='{range .items[*]}{.metadata.name}{" "}{.status.containerStatuses[*].restartCount}{"\n"}{end}' | awk '$2 {print $1, $2}' | xargs; }
scale() { k scale deployment/$server --replicas "$1" > /dev/null; rolled deployment/$server; gone; }
gone() { until_true eval '[ "$(k get pods -l $labels --no-headers | wc -l)" = "$(k get deployment/$server -o jsonpath="{.spec.replicas}")" ]'; }
pod_on() { k get pods -l $labels --field-selector "spec.nodeName=node-$1,status.phase=Running" -o jsonpath='{.items[0].metadata.name}'; }
signal() { # SIGNAL POD NODE: of the server's process, as the kernel of the node would send it
  local container
  container=$(k get pod "$2" -o jsonpath='{.status.containerStatuses[0].containerID}')
  "$dir/on" "$3" kill -"$1" "$("$dir/ctr" "$3" tasks ls | awk -v id="${container#containerd://}" '$1 == id {print $2}')"
}
all_ready() { [ "$(k get deployment/$server -o jsonpath='{.status.readyReplicas} {.status.updatedReplicas} {.status.replicas}')" = "$1 $1 $1" ]; }

under_load() { # COMMAND...: runs it while requests are sent, and again until there are REQUESTS of them
  local loader rounds=0
  rm -f "$dir"/run/stop*
  # shellcheck disable=SC2086
  "$dir/on" 1 "$(realpath -s "$PYTHON")" "$here/load.py" "$(address $server)" digits "$BODY" "$dir/run/stop" requests="${REQUESTS:-0}" ${LOAD:-} \
    > "$dir/log/load.txt" 2>&1 & loader=$!
  sleep 3
  until [ $rounds -gt 0 ] && [ -e "$dir/run/stop.enough" ]; do
    kill -0 $loader || { cat "$dir/log/load.txt"; exit 1; }
    "$@" || failed
    rounds=$((rounds + 1))
  done
  sleep 5
  touch "$dir/run/stop"
  wait "$loader"
  say "$1 was done $rounds times:"
  cat "$dir/log/load.txt"
}
update() {
  k rollout restart deployment/$server > /dev/null
  rolled deployment/$server
  gone
}
drain() { # of each node in turn
  for node in node-2 node-1; do
    "$dir/kubectl" drain $node --pod-selector $labels --ignore-daemonsets --delete-emptydir-data --timeout 600s >> "$dir/log/drain.txt" 2>&1 || failed
    rolled deployment/$server
    gone
    "$dir/kubectl" uncordon $node > /dev/null
  done
}
both() { update; drain; }
killed() {
  signal KILL "$(pod_on 2)" 2
  until_true eval '! all_ready 3'
  until_true all_ready 3
}
hung() {
  local pod; pod=$(pod_on 2)
  signal STOP "$pod" 2
  until_true eval '! all_ready 3'; say "not ready"
  until_true all_ready 3; say "ready again; restarts: $(restarts)"
}
control() { nsenter -t "$(cat "$dir/run/init.pid")" --mount --net --uts --ipc --pid "$@"; }
link_down() { control ip link set node-2 down; }
link_up() { control ip link set node-2 up; }
power_off() { # nobody is told that its connections end
  mapfile -d "" node < <(control cat "/proc/$(cat "$dir/run/node-2.pid")/cmdline")
  link_down
  control kill -KILL "$(cat "$dir/run/node-2.pid")" # and the kernel all that runs on the node
  control ip link del node-2
}
power_on() { # what was on its disk is still there
  rm "$dir/run/node-2.pid"
  control setsid unshare --mount --net --uts --ipc --pid --fork --kill-child "${node[@]}" < /dev/null > "$dir/log/node-2.log" 2>&1 &
  until_true test -s "$dir/run/node-2.pid"
  control ip link add node-2 type veth peer name eth0 netns "$(cat "$dir/run/node-2.pid")"
  control ip link set node-2 master lan up
}
lost() { # DOWN UP: node 2, and when the cluster has missed it for a while it comes back
  "$1"
  until_true eval '"$dir/kubectl" get node node-2 --no-headers | grep -q NotReady'; say "the cluster has missed node 2"
  until_true eval '[ "$(k get deployment/$server -o jsonpath="{.status.readyReplicas}")" -lt 3 ]'; say "its pods get no requests any more"
  sleep 20
  dashboard
  "$2"; say "node 2 comes back"
  until_true all_ready 3; say "all are ready again; restarts: $(restarts)"
}
put() { # PATH CONTENT: into the bucket
  "$dir/on" 1 curl -sf -m 10 -X PUT -H "Content-Type: application/octet-stream" --data-binary "$2" "http://$(address bucket):5000/my-models/production/$1" > /dev/null
}
bad_model() { # a file that is no model is in the bucket, and the servers are updated
  local config='backend: "onnxruntime"' file="no model" files=()
  entry() { local hash; hash=$(printf %s "$2" | sha256sum | cut -c -64); put "objects/$hash" "$2"; echo "\"$1\": {\"sha256\": \"$hash\", \"size\": ${#2}}"; }
  files=("$(entry config.pbtxt "$config")" "$(entry 1/model.onnx "$file")")
  put models/bad.json '{"format": 1, "model": "bad", "files": {'"${files[0]}, ${files[1]}"'}, "versions": [1]}'
  update; say "the update went on; restarts: $(restarts)"
  "$dir/on" 1 curl -s -X POST "http://$(address $server):8000/v2/repository/index" -H "slipway-control-key: $(control_key)" | head -c 1500; echo
  dashboard
  "$dir/on" 1 curl -sf -m 10 --aws-sigv4 aws:amz:us-east-1:s3 --user any:any -X DELETE \
    "http://$(address bucket):5000/my-models/production/models/bad.json"
}
control_key() { k get secret slipway -o jsonpath='{.data.SLIPWAY_CONTROL_KEY}' | base64 -d; }
full() { # there is room for what runs, and not for one more
  k patch deployment/$server --type json -p '[{"op": "replace", "path": "/spec/template/spec/containers/0/resources/requests/cpu", "value": "3"}]' > /dev/null
  until_true eval 'k get pods -l $labels --field-selector status.phase=Pending -o name | grep -q pod'
  sleep 20
  dashboard
  k rollout undo deployment/$server > /dev/null
  rolled deployment/$server
  gone
}
names() { # how long after a change the headless name has exactly the pods that are ready
  follows() {
    [ "$("$dir/on" 1 getent ahostsv4 slipway-inference-servers.ml-serving.svc.cluster.local | awk '/STREAM/ {print $1}' | sort | xargs)" = \
      "$(k get pods -l $labels -o jsonpath='{range .items[*]}{.status.podIP} {.status.conditions[?(@.type=="Ready")].status} {.metadata.deletionTimestamp}{"\n"}{end}' |
        awk '$2 == "True" && NF == 2 {print $1}' | sort | xargs)" ]
  }
  for count in 4 3; do
    k scale deployment/$server --replicas $count > /dev/null
    until_true all_ready $count
    local at; at=$(date +%s%N)
    until_true follows
    say "names: follow $count pods after $((($(date +%s%N) - at) / 1000000)) ms"
  done
  gone
}
burst() { # 1 -> 8 -> 1 by the processors' time
  "$dir/kubectl" apply -f - > /dev/null <<< '{"apiVersion": "autoscaling/v2beta2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "trial", "namespace": "ml-serving"},
    "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "'$server'"}, "minReplicas": 1, "maxReplicas": 8,
    "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": '"${BUSY:-40}"'}}}],
    "behavior": {"scaleUp": {"policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}, "scaleDown": {"stabilizationWindowSeconds": 30,
    "policies": [{"type": "Percent", "value": 50, "periodSeconds": 15}]}}}}'
  rm -f "$dir"/run/more*
  "$dir/on" 1 "$(realpath -s "$PYTHON")" "$here/load.py" "$(address $server)" digits "$BODY" "$dir/run/more" kept=0 new=12 grpc=0 watched=0 pause=0 > "$dir/log/burst.txt" & local more=$!
  until_true all_ready 8; say "burst: eight are ready"
  touch "$dir/run/more"; wait $more; cat "$dir/log/burst.txt"
  until_true all_ready 1; say "burst: one is left"
  gone
  dashboard
  k delete hpa trial > /dev/null
}
inside() { # CODE: in the dashboard
  k exec deploy/slipway-web -- python manage.py shell -v 0 -c "from dashboard.access.authorisation import SYSTEM$1"
}
dashboard() { # what it says over REST now
  local token
  token=$(inside '
from dashboard.accounts.tokens import token_create
from django.contrib.auth import get_user_model
print(token_create(user=get_user_model().objects.get(), actor=SYSTEM, name="trial", rights=["read"])[1])' | tail -n 1)
  for what in pods replicas replicas/events; do
    "$dir/on" 1 curl -s -H "Authorization: Bearer $token" "http://$(address slipway-web):9000/api/v1/environments/production/$what" -H "Host: slipway-web" |
      "$PYTHON" -c 'import json, sys
said = json.load(sys.stdin)
for one in said.get("results", [said])[:12]: print("    dashboard:", *(f"{k}={v}" for k, v in one.items() if v not in ("", None, [], False)))' || true
  done
}

all="all-in-one cpu update drain both killed-pod hung-pod cut-node killed-node bad-model full-node names burst dev servers-only"
for trial in "${@:-$all}"; do for trial in $trial; do say "$trial"; case $trial in
  all-in-one)
    remove; folder one
    at=$SECONDS
    apply all-in-one
    rolled statefulset/slipway
    token=$(k exec slipway-0 -- cat /data/infer_key)
    until_true answers "$(address slipway)" "Authorization: Bearer $token"
    say "all-in-one: the first answer, $((SECONDS - at)) s after apply -k on an empty cluster: $(head -c 120 "$dir/log/answer.json"); restarts: $(restarts)"
    k get pods -o wide
    at=$SECONDS
    k delete pod slipway-0 > /dev/null
    rolled statefulset/slipway
    say "all-in-one: the pod was deleted, and its successor on the same volume is ready after $((SECONDS - at)) s"
    remove
    ;;
  cpu)
    remove; folder shared; secrets
    at=$SECONDS
    apply cpu
    for part in web worker watch; do rolled "deployment/slipway-$part"; done
    say "cpu: web, worker and watcher are ready after $((SECONDS - at)) s"
    # 1.20 has no discovery.k8s.io/v1: there the dashboard finds the servers by their label.
    inside "
from dashboard.fleet.selectors import environment_get
from dashboard.fleet.services import environment_update
environment_update(environment=environment_get('production'), actor=SYSTEM, kubernetes_service='', kubernetes_selector='ml-serving/$labels')"
    rolled deployment/$server
    until_true answers "$(address $server)"
    say "cpu: three servers are ready, and the first answer came, after $((SECONDS - at)) s; restarts: $(restarts)"
    k get pods -o wide
    until_true eval '[ "$(k exec deploy/slipway-watch -- python manage.py environments list | grep -c http)" = 3 ]'
    k exec deploy/slipway-watch -- python manage.py environments list
    ;;
  update | drain | both) under_load "$trial" ;;
  killed-pod) under_load killed ;;
  hung-pod) LOAD=${LOAD:-grpc=4 watched=4} under_load hung ;; # of three servers each kind meets the one that hangs
  cut-node) update; under_load lost link_down link_up ;; # the update spreads the servers over the nodes
  killed-node) update; under_load lost power_off power_on ;;
  bad-model) under_load bad_model ;;
  full-node) under_load full ;;
  names) names ;;
  burst)
    scale 1
    LOAD="kept=1 new=1 grpc=1 watched=0 pause=100" under_load burst
    scale 3
    ;;
  dev)
    remove; folder shared; secrets
    at=$SECONDS
    apply dev
    rolled deployment/$server
    until_true answers "$(address $server)"
    say "dev: the first answer after $((SECONDS - at)) s; restarts: $(restarts)"
    ;;
  servers-only) # over `dev`, whose bucket has a model
    apply servers-only
    rolled deployment/$server
    gone
    until_true answers "$(address $server)"
    say "servers-only: three servers follow the bucket; restarts: $(restarts)"
    remove
    ;;
  *) echo "no such trial: $trial; there are: $all"; exit 2 ;;
esac; done; done
