//go:build tools

// Package tools pins the S3-compatible server that the datastore's store is tested against.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
