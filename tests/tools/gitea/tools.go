//go:build tools

// Package tools pins the forge whose hooks the server is tested with.
package tools

import _ "code.gitea.io/gitea"
