//! The configuration of a unit as Terragrunt evaluates it.

use std::{
    fs::File,
    io::{self, Read as _},
};

use crds::Failure;
use serde_json::Value;

use super::{PhaseRunner, Shell};
use crate::{
    classify::{self, OrInternal as _},
    ports::Notices,
    process::stream,
};

/// The command that prints it.
pub(super) const RENDER: &str = "render";
/// Maximum size of the printed configuration in bytes.
const MAX_CONFIGURATION: u64 = 64 << 20;
const UNREAD: &str = "Terragrunt's configuration cannot be read";

impl PhaseRunner {
    /// An object. Terragrunt needs version 0.78. Its warnings are not shown: the plan shows the same.
    ///
    /// # Errors
    /// Terragrunt fails, with the class of its words, or prints no object.
    pub(super) async fn configuration(
        &self,
        shell: &Shell,
        notices: &Notices,
    ) -> Result<Value, Failure> {
        let command = self.command(shell, [RENDER, "--json"])?;
        let (reader, writer) = stream(&command.role).or_internal(UNREAD)?;
        let text = tokio::task::spawn_blocking(move || {
            let mut text = String::new();
            File::from(reader)
                .take(MAX_CONFIGURATION)
                .read_to_string(&mut text)?;
            io::Result::Ok(text)
        });
        let mut events = self.events(&shell.stack, notices).held(true);
        let exit = self.children.run_into(&command, writer, &mut events).await;
        let exit = exit.map_err(|error| classify::not_run(RENDER, &error))?;
        if exit.code != 0 {
            events.let_go().await;
            return Err(classify::failure(RENDER, exit, &events.said()));
        }
        let text = text.await.or_internal(UNREAD)?.or_internal(UNREAD)?;
        // Code (`run_cmd`) may print lines before.
        let mut lines = text.lines().rev();
        let is_object = |value: &Value| value.is_object();
        let config = lines.find_map(|line| serde_json::from_str(line).ok().filter(is_object));
        config.ok_or("it printed no object").or_internal(UNREAD)
    }
}
