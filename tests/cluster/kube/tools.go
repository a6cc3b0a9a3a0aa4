//go:build tools

package main

// The controller is built of this module too, because it shares most packages with Kubernetes.
import _ "sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller"
