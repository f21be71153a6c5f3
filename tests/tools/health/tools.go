//go:build tools

// Package tools pins the interpreter that Argo CD runs health checks in.
package tools

import _ "github.com/yuin/gopher-lua/cmd/glua"
