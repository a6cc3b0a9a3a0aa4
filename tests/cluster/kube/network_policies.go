package main

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// enforceNetworkPolicies runs the NetworkPolicy controller of kube-router, and nothing else of it,
// for IPv4 on one node. The controller writes iptables rules and ipsets.
func enforceNetworkPolicies(args []string) {
	flags := flag.NewFlagSet("network-policies", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig file")
	node := flags.String("node", "", "name of this node")
	services := flags.String("service-cluster-ip-range", "10.96.0.0/16", "addresses of services")
	klog.InitFlags(flags)
	_ = flags.Parse(args) // ExitOnError: Parse returns no error
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	access, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	exitOn(err)
	client := kubernetes.NewForConfigOrDie(access)
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()

	settings := options.NewKubeRouterConfig()
	settings.EnableIPv4 = true
	settings.EnableIPv6 = false
	settings.RunFirewall = true
	settings.HostnameOverride = *node
	settings.ClusterIPCIDRs = []string{*services}
	settings.IPTablesSyncPeriod = time.Minute
	iptables, ipsets, err := netpol.NewIPTablesHandlers(settings)
	exitOn(err)
	controller, err := netpol.NewNetworkPolicyController(
		client, settings, pods, policies, namespaces, &sync.Mutex{}, iptables, ipsets)
	exitOn(err)
	addHandler(pods, controller.PodEventHandler)
	addHandler(namespaces, controller.NamespaceEventHandler)
	addHandler(policies, controller.NetworkPolicyEventHandler)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	// The controller blocks unless something reads its heartbeats.
	heartbeats := make(chan *healthcheck.ControllerHeartbeat, 16)
	go func() {
		for range heartbeats {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	go controller.Run(heartbeats, ctx.Done(), &running)
	<-ctx.Done()
	running.Wait()
}

func addHandler(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) {
	_, err := informer.AddEventHandler(handler)
	exitOn(err)
}

func exitOn(err error) {
	if err != nil {
		klog.Fatal(err)
	}
}
