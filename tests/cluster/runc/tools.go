//go:build tools

// Package tools lists the programs that are built of this module.
package tools

import _ "github.com/opencontainers/runc"
