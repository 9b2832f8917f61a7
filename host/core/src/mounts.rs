use std::path::Path;

/// File systems over a network: locks and shared memory do not work there, and changes made elsewhere send no events.
const SHARED: [&str; 11] =
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs", "fuse.glusterfs"];

/// The kind of the network share that a folder is on; nothing where it is on a disk of this machine. `mounts` is the text
/// of `/proc/self/mountinfo`, and the folder's path a canonical one.
pub fn network_share<'a>(mounts: &'a str, folder: &Path) -> Option<&'a str> {
    file_system(mounts, folder).filter(|kind| SHARED.contains(kind))
}

/// The kind of file system that a folder is on, by the longest mount point above it. Of two on one point the later counts.
fn file_system<'a>(mounts: &'a str, folder: &Path) -> Option<&'a str> {
    let mut found: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let Some(point) = fields.nth(4) else { continue };
        let point = point.replace("\\040", " ");
        let Some(kind) = fields.skip_while(|field| *field != "-").nth(1) else { continue };
        if folder.starts_with(&point) && found.is_none_or(|(length, _)| point.len() >= length) {
            found = Some((point.len(), kind));
        }
    }
    found.map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:50 / /srv/share rw,relatime shared:1 - nfs4 host:/export rw
31 22 0:51 / /srv/share/local\\040disk rw,relatime - xfs /dev/vdb rw
32 22 0:52 / /srv/share2 rw - tmpfs tmpfs rw
";

    #[test]
    fn the_longest_mount_point_above_tells_the_file_system() {
        for (folder, kind) in [
            ("/", "ext4"),
            ("/srv", "ext4"),
            ("/srv/share", "nfs4"),
            ("/srv/share/shop", "nfs4"),
            ("/srv/share/local disk/shop", "xfs"),
            ("/srv/share2", "tmpfs"),
            ("/srv/shared", "ext4"),
        ] {
            assert_eq!(file_system(MOUNTS, Path::new(folder)), Some(kind), "{folder}");
        }
        assert_eq!(file_system("", Path::new("/")), None);
    }

    #[test]
    fn only_what_is_shared_over_a_network_is_named() {
        assert_eq!(network_share(MOUNTS, Path::new("/srv/share/shop")), Some("nfs4"));
        assert_eq!(network_share(MOUNTS, Path::new("/srv")), None);
    }
}
