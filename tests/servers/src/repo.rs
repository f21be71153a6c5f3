//! A bare Git repository that tests write to without a work tree.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// A bare repository on disk.
#[derive(Clone, Debug)]
pub struct Repo {
    dir: PathBuf,
}

#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    File(&'a str, &'a [u8]),
    Executable(&'a str, &'a [u8]),
    /// Points a path at a commit of another repository, as a submodule does.
    Submodule(&'a str, &'a str),
    Delete(&'a str),
}

impl Repo {
    /// Creates an empty bare repository whose default branch is `main`.
    pub fn create(dir: &Path) -> anyhow::Result<Self> {
        let repo = Self {
            dir: dir.to_owned(),
        };
        let output = Command::new("git")
            .args(["init", "--quiet", "--bare", "--initial-branch=main"])
            .arg(dir)
            .output()
            .context("failed to start `git`")?;
        ensure!(
            output.status.success(),
            "`git init` failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(repo)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Commits files on top of a branch (created if missing); returns the new commit's id.
    pub fn commit(&self, branch: &str, files: &[(&str, &str)]) -> anyhow::Result<String> {
        let changes: Vec<Change<'_>> = files
            .iter()
            .map(|(path, text)| Change::File(path, text.as_bytes()))
            .collect();
        self.commit_changes(branch, &changes)
    }

    /// Commits every file below a folder on top of a branch.
    pub fn commit_folder(&self, branch: &str, folder: &Path) -> anyhow::Result<String> {
        let mut files = Vec::new();
        collect(folder, folder, &mut files)?;
        let changes: Vec<Change<'_>> = files
            .iter()
            .map(|(path, bytes)| Change::File(path, bytes))
            .collect();
        self.commit_changes(branch, &changes)
    }

    /// Commits changes of any kind on top of a branch; returns the new commit's id.
    pub fn commit_changes(&self, branch: &str, changes: &[Change<'_>]) -> anyhow::Result<String> {
        let reference = format!("refs/heads/{branch}");
        let message = format!("Change {} paths", changes.len());
        let mut import = format!(
            "commit {reference}\ncommitter Pawl Tests <tests@pawl.invalid> {} +0000\ndata {}\n{message}\n",
            jiff::Timestamp::now().as_second(),
            message.len(),
        )
        .into_bytes();
        if self.resolve(&reference)?.is_some() {
            import.extend_from_slice(format!("from {reference}^0\n").as_bytes());
        }
        for change in changes {
            add_change(&mut import, change)?;
        }
        self.git(&["fast-import", "--quiet", "--date-format=raw"], &import)?;
        self.resolve(&reference)?
            .context("the branch is not there after its commit")
    }

    /// Resets a branch to a commit, like a force push. `None` deletes it.
    pub fn reset(&self, branch: &str, commit: Option<&str>) -> anyhow::Result<()> {
        let reference = format!("refs/heads/{branch}");
        match commit {
            Some(commit) => self.git(&["update-ref", &reference, commit], b""),
            None => self.git(&["update-ref", "-d", &reference], b""),
        }
    }

    /// The commit of a revision, if it exists.
    pub fn resolve(&self, revision: &str) -> anyhow::Result<Option<String>> {
        let output = self
            .command(&[
                "rev-parse",
                "--verify",
                "--quiet",
                &format!("{revision}^{{commit}}"),
            ])
            .output()
            .context("failed to start `git`")?;
        Ok(output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    }

    fn git(&self, arguments: &[&str], stdin: &[u8]) -> anyhow::Result<()> {
        let mut command = self.command(arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().context("failed to start `git`")?;
        // If git ends early, its status and stderr report it.
        let _ = child
            .stdin
            .take()
            .context("`git` has no stdin")?
            .write_all(stdin);
        let output = child
            .wait_with_output()
            .context("failed to wait for `git`")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "`git {}` failed: {}",
            arguments.join(" "),
            said.trim()
        );
        Ok(())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        command
            .arg("--git-dir")
            .arg(&self.dir)
            .args([
                "-c",
                "user.name=Pawl Tests",
                "-c",
                "user.email=tests@pawl.invalid",
                "-c",
                "safe.directory=*",
            ])
            .args(arguments)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null");
        command
    }
}

/// Adds a change in the format of `git fast-import`.
fn add_change(import: &mut Vec<u8>, change: &Change<'_>) -> anyhow::Result<()> {
    let (line, data) = match *change {
        Change::File(path, data) => (format!("M 100644 inline {path}"), Some(data)),
        Change::Executable(path, data) => (format!("M 100755 inline {path}"), Some(data)),
        Change::Submodule(path, sha) => (format!("M 160000 {sha} {path}"), None),
        Change::Delete(path) => (format!("D {path}"), None),
    };
    ensure!(
        !line.contains(['\n', '"']),
        "a path that `git fast-import` needs quoted: {line:?}"
    );
    import.extend_from_slice(format!("{line}\n").as_bytes());
    if let Some(data) = data {
        import.extend_from_slice(format!("data {}\n", data.len()).as_bytes());
        import.extend_from_slice(data);
        import.push(b'\n');
    }
    Ok(())
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, Vec<u8>)>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)
        .with_context(|| format!("failed to read `{}`", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else {
            let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
            let bytes = std::fs::read(&path)
                .with_context(|| format!("failed to read `{}`", path.display()))?;
            files.push((name, bytes));
        }
    }
    Ok(())
}
