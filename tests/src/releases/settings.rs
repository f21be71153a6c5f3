//! What an operator says about a mirror of tests, in the words of the chart's `runner.tools.mirrors`.

use serde_json::{Value, json};
use tool_versions::Tool;

use super::{Key, Mirror};

/// One entry: where the tool is, its list, the authority of the server, and the key that signs.
pub fn mirror_settings(tool: Tool, mirror: &Mirror, key: &Key) -> Value {
    let list = match tool {
        Tool::OpenTofu => "tofu/api.json",
        Tool::Terraform => "terraform/index.json",
        Tool::Terragrunt => "repos/gruntwork-io/terragrunt/releases",
    };
    json!({"tool": tool.title(), "url": mirror.base(), "listUrl": format!("{}/{list}", mirror.base()), "ca": mirror.authority(),
        "keys": key.armored(), "fingerprints": [key.fingerprint().to_string()]})
}
