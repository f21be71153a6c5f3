#!/usr/bin/env bash
# OpenTofu prints one line of a provisioner as two if the program pauses for 100 ms within it.
#
# Version:   OpenTofu 1.10.6, with github.com/mitchellh/go-linereader v0.0.0-20190213213312-1b945b3263eb.
# Expected:  a program's line is a line of the log, however slowly it is written.
# Seen:      `(local-exec): pass`, then `(local-exec): word`. The line reader returns what it has 100 ms after the last byte, and the
#            prefix is printed before each part. No search of the log for `password` finds it, so what masks secrets by their text misses it.
# Source:    `Timeout: 100 * time.Millisecond` in go-linereader's `New`, which the provisioners of OpenTofu and Terraform use.
#
# Needs Go and the Go module proxy; builds OpenTofu, which takes ten minutes on two cores.
set -euo pipefail

directory=$(mktemp -d)
trap 'chmod -R u+w "$directory"; rm -rf "$directory"' EXIT
cd "$directory"

mkdir build stack
cd build
go mod init finding
# OpenTofu needs its own fork of HCL, and Go ignores `replace` of a dependency.
go mod edit -replace github.com/hashicorp/hcl/v2=github.com/opentofu/hcl/v2@v2.20.2-0.20250121132637-504036cd70e7
go get github.com/opentofu/opentofu/cmd/tofu@v1.10.6
go build -o "$directory/tofu" github.com/opentofu/opentofu/cmd/tofu
cd "$directory/stack"

cat > main.tf << 'END'
resource "terraform_data" "slow" {
  provisioner "local-exec" {
    command = "printf pass; sleep 1; echo word"
  }
}
END
touch "$directory/rc"
export TF_CLI_CONFIG_FILE=$directory/rc
"$directory/tofu" init -no-color > init.log
"$directory/tofu" apply -auto-approve -no-color > apply.log
"$directory/tofu" version | head -n 1
seen=$(grep -F '(local-exec): ' apply.log | grep -vF 'Executing:')
printf '%s\n' "$seen"
[ "$seen" = "$(printf '%s\n' 'terraform_data.slow (local-exec): pass' 'terraform_data.slow (local-exec): word')" ] || {
  echo 'This has changed: the line is not printed in these two parts.' >&2
  exit 1
}
