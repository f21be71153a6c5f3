#!/usr/bin/env bash
# Terragrunt destroys a unit that excludes `destroy`, if the destroy is planned and applied in two commands.
#
# Version:   Terragrunt 1.1.3 with OpenTofu 1.10.6.
# Expected:  `exclude { actions = ["destroy"], no_run = true }` keeps the unit, whichever way its destruction is asked for, as `prevent_destroy`
#            does: that refuses `plan -destroy` too.
# Seen:      `destroy` ends early, with 0. `plan -destroy -out=FILE` and `apply FILE`, the way of every CI that shows a plan, destroy it.
#            gruntwork-io/terragrunt #6767 has the first half: the plan shows a destruction that `destroy` would not do.
# Source:    the actions of `exclude` are compared with the name of the command alone, and these are named `plan` and `apply`.
#
# Needs Go and the Go module proxy; builds both programs, which takes fifteen minutes on two cores.
set -euo pipefail

directory=$(mktemp -d)
trap 'chmod -R u+w "$directory"; rm -rf "$directory"' EXIT
mkdir "$directory"/{tofu,terragrunt,bin,unit}
cd "$directory/tofu"
go mod init finding
# OpenTofu needs its own fork of HCL, and Go ignores `replace` of a dependency.
go mod edit -replace github.com/hashicorp/hcl/v2=github.com/opentofu/hcl/v2@v2.20.2-0.20250121132637-504036cd70e7
go get github.com/opentofu/opentofu/cmd/tofu@v1.10.6
go build -o "$directory/bin/tofu" github.com/opentofu/opentofu/cmd/tofu
cd "$directory/terragrunt"
go mod init finding
go get github.com/gruntwork-io/terragrunt@v1.1.3
go build -ldflags '-X github.com/gruntwork-io/terragrunt/internal/version.Version=1.1.3' -o "$directory/bin/terragrunt" github.com/gruntwork-io/terragrunt
PATH=$directory/bin:$PATH
cd "$directory/unit"

cat > terragrunt.hcl << 'END'
remote_state {
  backend  = "local"
  config   = { path = "${get_terragrunt_dir()}/unit.tfstate" }
  generate = { path = "backend.tf", if_exists = "overwrite" }
}
exclude {
  if      = true
  actions = ["destroy"]
  no_run  = true
}
END
echo 'resource "terraform_data" "kept" {}' > main.tf
touch "$directory/rc"
export TF_CLI_CONFIG_FILE=$directory/rc
terragrunt --version
tofu version | head -n 1

objects() { grep -c '"kept"' unit.tfstate || true; }
quietly() { terragrunt run --non-interactive -- "$@" > log 2>&1 || { cat log >&2; exit 1; }; }
quietly apply -auto-approve
quietly destroy -auto-approve
after_one=$(objects)
quietly plan -destroy -out="$directory/plan"
quietly apply "$directory/plan"
after_two=$(objects)
echo "objects after \`destroy\`: $after_one; after \`plan -destroy\` and \`apply\`: $after_two"
[ "$after_one $after_two" = '1 0' ] || {
  echo 'This has changed: the unit is kept, or not, in both ways.' >&2
  exit 1
}
