//! Writes the termination message, in place, since the file is a mount of the kubelet.

use std::{
    fs::OpenOptions,
    io::{Seek, SeekFrom, Write},
    path::Path,
};

use crds::{Changed, Failure, Reason, RunResult, termination::TerminationMessage};

use nix::fcntl::{FallocateFlags, fallocate};

use crate::settings::Settings;

pub fn message(
    settings: &Settings,
    result: Option<RunResult>,
    text: &str,
    failure: Option<Failure>,
) -> TerminationMessage {
    TerminationMessage {
        run_uid: settings.run_uid.clone(),
        attempt: settings.attempt,
        pod_uid: settings.pod_uid.clone(),
        nonce: settings.nonce.clone(),
        result,
        message: text.to_owned(),
        failure,
        unkept: None,
    }
}

/// Reserves disk space for the message, so that it can be written to a full disk. Best effort.
pub fn reserve(path: &Path) {
    let Ok(file) = OpenOptions::new().write(true).open(path) else {
        return;
    };
    let most = i64::try_from(crds::termination::MAX_BYTES).unwrap_or(i64::MAX);
    let _ = fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, most);
}

/// Writes the message. Ignores a missing file, as outside a pod.
pub fn write(path: &Path, message: &TerminationMessage) {
    let bytes = message.to_bytes();
    let Ok(mut file) = OpenOptions::new().write(true).open(path) else {
        return;
    };
    let _ = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.write_all(&bytes))
        .and_then(|()| file.set_len(bytes.len() as u64));
}

/// Adds the parts of log and journal that are missing in the datastore, which are known only at the very end.
pub fn say_unkept(path: &Path, text: &str) {
    let stands = std::fs::read_to_string(path)
        .ok()
        .and_then(|stands| TerminationMessage::parse(&stands));
    if let Some(message) = stands {
        write(
            path,
            &TerminationMessage {
                unkept: Some(text.to_owned()),
                ..message
            },
        );
    }
}

/// The failure of an agent with a fault.
pub fn fault(text: &str) -> Failure {
    Failure {
        message: text.to_owned(),
        changes: Changed::Unknown,
        ..Reason::AgentFault.failure("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_message_leaves_nothing_of_a_longer_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut message = TerminationMessage {
            run_uid: "u".into(),
            attempt: 1,
            pod_uid: "p".into(),
            nonce: "n".into(),
            result: Some(RunResult::Applied),
            message: "x".repeat(300),
            failure: None,
            unkept: None,
        };
        write(file.path(), &message);
        message.message = "short".into();
        write(file.path(), &message);
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(TerminationMessage::parse(&text), Some(message.clone()));
        say_unkept(file.path(), "the end of the log");
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(
            TerminationMessage::parse(&text),
            Some(TerminationMessage {
                unkept: Some("the end of the log".into()),
                ..message
            })
        );
        write(
            Path::new("/does/not/exist"),
            &TerminationMessage::parse(&text).unwrap(),
        );
    }
}
