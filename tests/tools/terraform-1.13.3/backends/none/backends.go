// Package none stands in for the backends that Terraform keeps in modules of their own, which are published nowhere.
package none

import (
	"github.com/hashicorp/terraform/internal/backend"
	"github.com/hashicorp/terraform/internal/backend/remote-state/inmem"
)

// New makes a backend that keeps states in memory: the tests use none of those that it stands for.
func New() backend.Backend {
	return inmem.New()
}
