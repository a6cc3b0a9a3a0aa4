// Clustertool is the first process of each pod when its name is `pause`. As `clustertool relay FROM
// TO` it copies connections; FROM and TO are `tcp:HOST:PORT` or `unix:PATH`. The relay prints the
// address on which it listens, so that FROM may have the port 0.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	switch args := os.Args; {
	case filepath.Base(args[0]) == "pause":
		pause()
	case len(args) == 4 && args[1] == "relay":
		fmt.Fprintln(os.Stderr, relay(args[2], args[3]))
		os.Exit(1)
	default:
		fmt.Fprintln(os.Stderr, "usage: clustertool relay FROM TO")
		os.Exit(2)
	}
}

// pause reaps the orphans of a pod until a signal ends it.
func pause() {
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			os.Exit(0)
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}

// relay copies connections until it can accept no more, and returns the reason.
func relay(from, to string) error {
	network, address, _ := strings.Cut(from, ":")
	listener, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	for {
		accepted, err := listener.Accept()
		if err != nil {
			return err
		}
		go connect(accepted, to)
	}
}

func connect(accepted net.Conn, to string) {
	defer accepted.Close()
	network, address, _ := strings.Cut(to, ":")
	dialed, err := net.Dial(network, address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer dialed.Close()
	done := make(chan struct{}, 2)
	go copyHalf(dialed, accepted, done)
	go copyHalf(accepted, dialed, done)
	<-done
	<-done
}

// copyHalf copies one direction, and passes on the end of the stream.
func copyHalf(to, from net.Conn, done chan<- struct{}) {
	_, _ = io.Copy(to, from) // a broken connection is closed like an ended one
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	done <- struct{}{}
}
