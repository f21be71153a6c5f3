//go:build tools

package tools

import (
	_ "github.com/gruntwork-io/terragrunt"
)
