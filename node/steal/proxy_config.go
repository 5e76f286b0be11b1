package steal

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

const (
	// DefaultProxyConns is how many passed-through connections a Proxy holds;
	// each costs two descriptors.
	DefaultProxyConns = 4096
	// DefaultProxyQueue is how many stolen connections wait for Accept.
	DefaultProxyQueue = 128
)

// Route is one port of an app behind a Proxy.
type Route struct {
	// Listener is where visitors arrive. The Proxy owns it.
	Listener *net.TCPListener
	// Original is the address that visitors mean: what keys are matched with
	// and what stolen connections show as their LocalAddr. The zero value
	// means the address that the visitor connected to.
	Original netip.AddrPort
	// App is where the app really listens.
	App netip.AddrPort
}

// ProxyConfig configures a Proxy. Only Routes must be set.
type ProxyConfig struct {
	Routes []Route
	// StaleAfter is how old the heartbeat may be before armed connections go
	// to the app; zero means DefaultStaleAfter.
	StaleAfter time.Duration
	// MaxConns bounds passed-through connections; those beyond it are reset
	// and counted. Zero means DefaultProxyConns.
	MaxConns int
	// Queue bounds stolen connections that wait for Accept; those beyond it go
	// to the app and are counted. Zero means DefaultProxyQueue.
	Queue int
}

// validate returns all problems of the configuration.
func (c ProxyConfig) validate() error {
	var problems []error
	if len(c.Routes) == 0 {
		problems = append(problems, errors.New("no route"))
	}
	for i, r := range c.Routes {
		if r.Listener == nil {
			problems = append(problems, fmt.Errorf("route %d has no listener", i))
		}
		if !r.App.IsValid() || r.App.Port() == 0 {
			problems = append(problems, fmt.Errorf("route %d has no app address", i))
		}
	}
	if c.StaleAfter < 0 || c.MaxConns < 0 || c.Queue < 0 {
		problems = append(problems, errors.New("negative limit"))
	}
	return errors.Join(problems...)
}

// withDefaults replaces zero limits.
func (c ProxyConfig) withDefaults() ProxyConfig {
	if c.StaleAfter == 0 {
		c.StaleAfter = DefaultStaleAfter
	}
	if c.MaxConns == 0 {
		c.MaxConns = DefaultProxyConns
	}
	if c.Queue == 0 {
		c.Queue = DefaultProxyQueue
	}
	return c
}
