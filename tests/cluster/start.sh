#!/bin/bash
# Start a Kubernetes of one node as the first process of new network, mount and process namespaces.
# The death of this process ends the cluster.
#
#   unshare --net --mount --pid --fork start.sh DIRECTORY CGROUP
#
# DIRECTORY gets the whole state; CGROUP is the name of the cgroup for the containers. Standard input
# gives one line: the directories of the cluster's programs, in the form of PATH. The file
# DIRECTORY/ready appears when the cluster is usable.
set -euo pipefail
source_directory=$(dirname "$(realpath "$0")")
directory=$1
cgroup=$2
node=node1
node_ip=10.250.0.1
outside_gateway=198.51.100.1
outside_ip=198.51.100.2
pod_cidr=10.244.0.0/24
service_cidr=10.96.0.0/16
api_service_ip=10.96.0.1

fail() {
  echo "$*" >&2
  exit 1
}

read -r programs || exit 1 # the caller ended before it had built the programs
export PATH=$programs:$PATH
cd "$directory"
mkdir -p certificates cni/{configuration,addresses,cache} containerd kubelet log node-log outside sysctl

# ---- Mounts: other processes of the machine see none of them ----
mount --make-rshared / # mounts of the kubelet reach containerd
# Until the new /proc is mounted, /proc/self/stat shows the id of a process as others see it. The
# caller needs that of this process, and tests need that of a process in the namespace "outside", a
# host that pods may or may not reach.
read -r first_pid _ </proc/self/stat
echo "$first_pid" >first.pid
echo 'reached the outside' >outside/index.html
mkfifo outside.pid
# shellcheck disable=SC2016 # expanded by the inner shell
unshare --net sh -c '
  read -r pid rest </proc/self/stat
  echo "$pid" >outside.pid
  exec busybox httpd -f -p 80 -h outside' >log/outside.log 2>&1 </dev/null &
outside=$!
read -r outside_pid <outside.pid
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /var/lib/cni
mount --bind node-log /var/log
mount --bind cni/cache /var/lib/cni # containerd 1.6 has no option for this directory

# ---- Network: no address and no route is added to the machine ----
beyond() { nsenter --target "$outside" --net "$@"; }
ip link set lo up
ip address add $node_ip/32 dev lo # the kernel may lack links of type dummy
ip link add outside type veth peer name eth0
ip link set eth0 netns "$outside"
ip address add $outside_gateway/24 dev outside
ip link set outside up
beyond ip link set lo up
beyond ip address add $outside_ip/24 dev eth0
beyond ip link set eth0 up
beyond ip route add default via $outside_gateway
ip route add default via $outside_ip # the kubelet refuses to start without a default route
echo 1 >/proc/sys/net/ipv4/ip_forward
modprobe br_netfilter 2>/dev/null || true # built in, or loaded already
# Without this sysctl, policies between pods of one node have no effect.
echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
# The controller of network policies knows IPv4 alone. So the node has no IPv6, and pods reach each
# other by no link-local address.
for interfaces in all default; do echo 1 >"/proc/sys/net/ipv6/conf/$interfaces/disable_ipv6"; done
echo 1 >/proc/sys/net/bridge/bridge-nf-call-ip6tables
ip6tables --policy FORWARD DROP
echo 'nameserver 192.0.2.53' >resolv.conf # never answers: the cluster has no DNS

# ---- Cgroups: one in every hierarchy of version 1, or one of version 2 ----
make_cgroup() {
  mkdir -p "$1/$cgroup"
  if [ -e "$1/cpuset.mems" ]; then # version 1: without both, no process can enter
    cat "$1/cpuset.cpus" >"$1/$cgroup/cpuset.cpus"
    cat "$1/cpuset.mems" >"$1/$cgroup/cpuset.mems"
  fi
}
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  make_cgroup /sys/fs/cgroup
  for controller in $(</sys/fs/cgroup/cgroup.controllers); do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
  done
else
  for hierarchy in /sys/fs/cgroup/*/; do
    if [ -e "$hierarchy/cgroup.procs" ]; then make_cgroup "${hierarchy%/}"; fi
  done
fi

# ---- Certificates and kubeconfigs ----
new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "certificates/$1.key"; }
certify() { # NAME SUBJECT EXTENSION...
  local name=$1 subject=$2
  shift 2
  new_key "$name"
  openssl req -new -key "certificates/$name.key" -subj "$subject" |
    openssl x509 -req -CA certificates/ca.crt -CAkey certificates/ca.key -CAcreateserial -days 3650 \
      -extfile <(printf '%s\n' "$@") -out "certificates/$name.crt" 2>>log/openssl.log
}
certify_client() { certify "$1" "$2" extendedKeyUsage=clientAuth; }
encode() { base64 --wrap=0 "$1"; }
write_kubeconfig() { # NAME USER NAMESPACE
  cat >"$1.kubeconfig" <<K
apiVersion: v1
kind: Config
clusters:
- name: tests
  cluster: {server: "https://$node_ip:6443", certificate-authority-data: $(encode certificates/ca.crt)}
users: [{name: user, user: $2}]
contexts: [{name: tests, context: {cluster: tests, user: user, namespace: $3}}]
current-context: tests
K
}
for_certificate() {
  echo "{client-certificate-data: $(encode "certificates/$1.crt"), client-key-data: $(encode "certificates/$1.key")}"
}
umask 077
new_key ca
openssl req -x509 -new -key certificates/ca.key -out certificates/ca.crt -days 3650 -subj /CN=cluster-ca \
  -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
names=DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc
certify apiserver /CN=kube-apiserver extendedKeyUsage=serverAuth \
  "subjectAltName=$names,IP:127.0.0.1,IP:$node_ip,IP:$api_service_ip"
certify kubelet "/CN=system:node:$node" extendedKeyUsage=serverAuth "subjectAltName=DNS:$node,IP:$node_ip"
certify_client apiserver-to-kubelet /O=system:masters/CN=kube-apiserver
certify_client admin /O=system:masters/CN=admin
certify_client controllers /CN=system:kube-controller-manager
certify_client scheduler /CN=system:kube-scheduler
certify_client node "/O=system:nodes/CN=system:node:$node"
certify_client proxy /CN=system:kube-proxy
certify_client network-policies /CN=cluster:network-policies
new_key service-accounts
openssl pkey -in certificates/service-accounts.key -pubout -out certificates/service-accounts.pub
for user in admin controllers scheduler node proxy network-policies; do
  write_kubeconfig $user "$(for_certificate $user)" default
done
umask 022
export KUBECONFIG=$directory/admin.kubeconfig

# ---- Daemons ----
declare -A process
start() { # NAME COMMAND...
  local name=$1
  shift
  "$@" >"log/$name.log" 2>&1 </dev/null &
  process[$name]=$!
}
await() { # NAME COMMAND...: until the command succeeds, if the daemon lives
  local name=$1 deadline=$((SECONDS + 180))
  shift
  until "$@" >/dev/null 2>&1; do
    kill -0 "${process[$name]}" 2>/dev/null || fail "$name ended: $(tail -n 1 "log/$name.log")"
    [ $SECONDS -lt $deadline ] || fail "$name does not get ready: $(tail -n 1 "log/$name.log")"
    sleep .1
  done
}

cat >cni/configuration/10-bridge.conflist <<C
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$directory/cni/addresses",
            "ranges": [[{"subnet": "$pod_cidr"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
C
# The runtime runsc exists if gVisor was built. Its platform systrap needs no KVM.
runtimes=runc
if command -v containerd-shim-runsc-v1 >/dev/null; then runtimes+=' runsc'; fi
cat >runsc.toml <<C
[runsc_config]
  platform = "systrap"
  network = "sandbox"
C
cri='plugins."io.containerd.grpc.v1.cri"'
{
  cat <<C
version = 2
root = "$directory/containerd/root"
state = "$directory/containerd/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "$directory/containerd.sock"
[$cri]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true # lowering a score takes CAP_SYS_RESOURCE
  [$cri.cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$directory/cni/configuration"
  [$cri.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [$cri.containerd.runtimes.runc.options]
      BinaryName = "$(command -v runc)"
      SystemdCgroup = false
C
  case $runtimes in *runsc*)
    cat <<C
  [$cri.containerd.runtimes.runsc]
    runtime_type = "io.containerd.runsc.v1"
    [$cri.containerd.runtimes.runsc.options]
      TypeUrl = "io.containerd.runsc.v1.options"
      ConfigPath = "$directory/runsc.toml"
C
    ;;
  esac
} >containerd.toml
cat >kubelet.yaml <<C
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $node_ip
tlsCertFile: $directory/certificates/kubelet.crt
tlsPrivateKeyFile: $directory/certificates/kubelet.key
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $directory/certificates/ca.crt}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://$directory/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
resolvConf: $directory/resolv.conf
volumePluginDir: $directory/kubelet/volume-plugins
kubeAPIQPS: 200
kubeAPIBurst: 400
serializeImagePulls: false
imageMinimumGCAge: 24h
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%, imagefs.inodesFree: 1%}
C

start containerd containerd -c containerd.toml
start etcd etcd --data-dir "$directory/etcd" --unsafe-no-fsync --log-level warn \
  --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380
start apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
  --bind-address=0.0.0.0 --secure-port=6443 --advertise-address=$node_ip \
  --service-cluster-ip-range=$service_cidr --allow-privileged=true \
  --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
  --client-ca-file=certificates/ca.crt \
  --tls-cert-file=certificates/apiserver.crt --tls-private-key-file=certificates/apiserver.key \
  --kubelet-certificate-authority=certificates/ca.crt --kubelet-preferred-address-types=InternalIP \
  --kubelet-client-certificate=certificates/apiserver-to-kubelet.crt \
  --kubelet-client-key=certificates/apiserver-to-kubelet.key \
  --service-account-issuer=https://kubernetes.default.svc \
  --service-account-key-file=certificates/service-accounts.pub \
  --service-account-signing-key-file=certificates/service-accounts.key
# A relay of the caller makes the API reachable outside of this network namespace.
start relay clustertool relay "unix:$directory/api.sock" tcp:127.0.0.1:6443
await apiserver kubectl get --raw /readyz

clients() {
  echo "--kubeconfig=$1.kubeconfig --authentication-kubeconfig=$1.kubeconfig --authorization-kubeconfig=$1.kubeconfig"
}
# shellcheck disable=SC2046 # words
start controllers kube-controller-manager $(clients controllers) --leader-elect=false \
  --use-service-account-credentials=true --root-ca-file=certificates/ca.crt \
  --service-account-private-key-file=certificates/service-accounts.key \
  --cluster-signing-cert-file=certificates/ca.crt --cluster-signing-key-file=certificates/ca.key \
  --kube-api-qps=200 --kube-api-burst=400
# shellcheck disable=SC2046 # words
start scheduler kube-scheduler $(clients scheduler) --leader-elect=false --kube-api-qps=200 --kube-api-burst=400
await containerd timeout 2 ctr --address "$directory/containerd.sock" version
# The kubelet sets sysctls of the whole machine, so it gets files in their place. containerd must not
# see them: a process in a user namespace cannot mount a /proc that something is mounted over.
# shellcheck disable=SC2016 # expanded by the inner shell
start kubelet unshare --mount --propagation unchanged sh -euc '
  mount --make-rprivate /proc
  for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    name=${setting%=*}
    mkdir -p "sysctl/${name%/*}"
    echo "${setting#*=}" >"sysctl/$name"
    mount --bind "sysctl/$name" "/proc/sys/$name"
  done
  exec "$@"' sh \
  kubelet --config=kubelet.yaml --kubeconfig=node.kubeconfig --hostname-override=$node --node-ip=$node_ip \
  --root-dir="$directory/kubelet" --cert-dir="$directory/kubelet/certificates"

{
  cat "$source_directory"/{network-policies,account}.yaml
  for runtime in $runtimes; do
    printf -- '---\napiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: %s}\nhandler: %s\n' "$runtime" "$runtime"
  done
} | kubectl apply -f - >/dev/null
await kubelet kubectl wait --for=condition=Ready node/$node --timeout=5s
# kube-proxy may set none of its sysctls, because they are the whole machine's.
start proxy kube-proxy --kubeconfig=proxy.kubeconfig --hostname-override=$node --proxy-mode=iptables \
  --cluster-cidr=$pod_cidr --conntrack-max-per-core=0 \
  --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0
start network-policies network-policies --kubeconfig=network-policies.kubeconfig --node=$node \
  --service-cluster-ip-range=$service_cidr
if controller=$(command -v agent-sandbox-controller); then
  kubectl apply --server-side -f "$(dirname "$controller")/manifests/crds/" >/dev/null
  kubectl wait --for=condition=Established crd --all --timeout=30s >/dev/null
  start agent-sandbox agent-sandbox-controller --kubeconfig=admin.kubeconfig --extensions --leader-elect=false \
    --metrics-bind-address=0 --health-probe-bind-address=127.0.0.1:8081
fi
# Pods that are created before their service account are refused.
for namespace in default ringfence-tests; do
  await controllers kubectl --namespace $namespace get serviceaccount default
done
(
  umask 077
  token=$(kubectl --namespace ringfence-tests create token tests --duration=8760h)
  write_kubeconfig account "{token: $token}" ringfence-tests
)
cat >ready.unfinished <<V
address $node_ip:6443
outside_ip $outside_ip
outside_namespace /proc/$outside_pid/ns/net
V
mv ready.unfinished ready
exec catatonit -P # reaps until it is killed
