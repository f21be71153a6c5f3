//! The git of this machine, run by tests as the agent runs it.

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Stdio},
};

use source::{Ended, Git};

pub struct LocalGit;

fn command(args: &[&str], env: &[(OsString, OsString)], dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.args(args).env_clear().current_dir(dir);
    command.envs(env.iter().map(|(key, value)| (key, value)));
    command.stdin(Stdio::null());
    command
}

impl Git for LocalGit {
    type Error = io::Error;

    async fn run_git(
        &self,
        args: &[&str],
        env: &[(OsString, OsString)],
        dir: &Path,
    ) -> io::Result<Ended> {
        let output = command(args, env, dir).output()?;
        Ok(Ended {
            code: output.status.code().unwrap_or(-1),
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
            ..Ended::default()
        })
    }

    async fn read_git<T: Send + 'static>(
        &self,
        args: &[&str],
        env: &[(OsString, OsString)],
        dir: &Path,
        read: fn(File) -> T,
    ) -> io::Result<Option<T>> {
        let mut child = command(args, env, dir).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().map(OwnedFd::from);
        let found = output.map(|output| read(File::from(output)));
        child.wait()?;
        Ok(found)
    }
}
