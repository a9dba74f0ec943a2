//! The users of the database as they are mounted, which may be missing, late, or change at any time.

use std::{io, path::Path};

use tokio::io::AsyncReadExt;

use crate::engine::users::{FILE, MAX_BYTES, UsersDocument, UsersRefusal};

/// Why the mounted users cannot be used. Shows nothing of what is mounted but names.
#[derive(Debug, thiserror::Error)]
pub(super) enum UsersMountError {
    #[error("failed to read the mounted users")]
    Read(#[source] io::Error),
    #[error(transparent)]
    Refused(#[from] UsersRefusal),
}

/// Reads the users in the folder where they are mounted; `None` while nothing is.
pub(super) async fn read_users(folder: &Path) -> Result<Option<UsersDocument>, UsersMountError> {
    let read_json = async {
        // Links are followed: kubelet turns one to have all files of a mount change at once.
        let file = tokio::fs::File::open(folder.join(FILE)).await?;
        if !file.metadata().await?.is_file() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let mut json = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut json).await?;
        Ok(json)
    };
    match read_json.await {
        Ok(json) => Ok(Some(UsersDocument::from_json(&json)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(UsersMountError::Read(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn users_may_be_missing_and_what_is_damaged_is_told() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("users");
        assert!(read_users(&folder).await.unwrap().is_none(), "without a mount");
        fs::create_dir(&folder).unwrap();
        assert!(
            read_users(&folder).await.unwrap().is_none(),
            "an optional Secret that is not there"
        );
        let document = UsersDocument::new(Vec::new(), None);
        // As kubelet lays a mount out.
        fs::create_dir(folder.join("..1")).unwrap();
        fs::write(folder.join("..1").join(FILE), document.to_json()).unwrap();
        std::os::unix::fs::symlink("..1", folder.join("..data")).unwrap();
        std::os::unix::fs::symlink(Path::new("..data").join(FILE), folder.join(FILE)).unwrap();
        assert_eq!(read_users(&folder).await.unwrap(), Some(document));
        fs::write(folder.join("..1").join(FILE), "{").unwrap();
        assert!(matches!(read_users(&folder).await, Err(UsersMountError::Refused(_))));
        fs::remove_file(folder.join(FILE)).unwrap();
        fs::create_dir(folder.join(FILE)).unwrap();
        assert!(matches!(read_users(&folder).await, Err(UsersMountError::Read(_))));
    }
}
