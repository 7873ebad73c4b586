// The process of a pod's sandbox: it holds the namespaces and waits to be told to end.
// As PID 1 of a shared process namespace it also collects the children that others left behind.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			child, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err != nil || child <= 0 {
				break
			}
		}
	}
}
