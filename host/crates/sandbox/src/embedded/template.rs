//! What a sandbox has before anybody has written to it.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The lower layers of every sandbox.
#[derive(Debug, Clone)]
pub struct Template {
    pub root: PathBuf,
    /// What is seen at /usr, where `root` does not have it.
    pub usr: Option<PathBuf>,
    /// What the system calls itself.
    pub system: String,
    pub programs: Vec<String>,
}

/// The host's own /usr below a root that has nothing else of the host.
pub fn default_template(folder: &Path) -> io::Result<Template> {
    let root = folder.join("template/default");
    for name in ["etc", "usr", "proc", "dev", "sys", "tmp", "root", "workspace", "var/tmp", "run", "home", "opt"] {
        std::fs::create_dir_all(root.join(name))?;
    }
    for link in ["bin", "sbin", "lib", "lib64"] {
        match symlink(format!("usr/{link}"), root.join(link)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            linked => linked?,
        }
    }
    std::fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/bash\n")?;
    std::fs::write(root.join("etc/group"), "root:x:0:\ntty:x:5:\n")?;
    Ok(Template { root, usr: Some("/usr".into()), system: "Linux".to_owned(), programs: vec!["bash".to_owned()] })
}
