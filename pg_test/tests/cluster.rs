//! The harness's own clusters and sessions, on plain PostgreSQL.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::scope;

use pg_test::prelude::*;
use pg_test::process::Process;

#[test]
fn two_clusters_boot_in_parallel_and_have_different_identities() {
    let identities: Vec<String> = scope(|scope| {
        let boot = || {
            let cluster = Cluster::start();
            let mut session = cluster.connect("postgres");
            assert_eq!(session.one::<i32>("SELECT 41 + $1", &[&1_i32]), 42);
            session.text("SELECT system_identifier FROM pg_control_system()")
        };
        let threads = [scope.spawn(boot), scope.spawn(boot)];
        threads.into_iter().map(|thread| thread.join().expect("boots")).collect()
    });
    assert_ne!(identities[0], identities[1]);
}

#[test]
fn committed_rows_survive_every_kind_of_end() {
    let cluster = Cluster::start();
    cluster.connect("postgres").exec("CREATE TABLE t (how text)");
    let ends: [(&str, &dyn Fn()); 5] = [
        ("fast", &|| cluster.stop(Mode::Fast)),
        ("smart", &|| cluster.stop(Mode::Smart)),
        ("immediate", &|| cluster.stop(Mode::Immediate)),
        ("kill -9 of the postmaster", &|| cluster.kill9_postmaster()),
        ("kill -9 of everything", &|| cluster.kill9_everything()),
    ];
    for (how, end) in ends {
        cluster.connect("postgres").run("INSERT INTO t VALUES ($1)", &[&how]);
        end();
        assert!(!cluster.is_running());
        cluster.start_again();
    }
    assert_eq!(cluster.connect("postgres").text("SELECT count(*) FROM t"), "5");
    assert!(cluster.log().contains("automatic recovery in progress"));
}

#[test]
fn kill9_of_the_postmaster_leaves_no_process_behind() {
    let cluster = Cluster::start();
    let busy = cluster.connect("postgres").in_background("SELECT pg_sleep(120)");
    cluster
        .connect("postgres")
        .wait_until(&format!("SELECT state = 'active' FROM pg_stat_activity WHERE pid = {}", busy.backend_pid()), 30);
    let postmaster = Process::find(cluster.pid()).expect("runs");
    let children = Process::children_of(cluster.pid());
    assert!(children.iter().any(|child| child.pid == busy.backend_pid()));
    cluster.kill9_postmaster();
    assert!(!postmaster.is_alive());
    assert!(children.iter().all(|child| !child.is_alive()));
    let (_, ended) = busy.finish();
    assert!(ended.expect_err("the server died").is_connection_lost());
    cluster.start_again();
}

#[test]
fn kill9_of_a_backend_restarts_the_server_and_keeps_committed_rows() {
    let cluster = Cluster::start();
    let mut session = cluster.connect("postgres");
    session.exec("CREATE TABLE t AS SELECT 7 AS n");
    let victim = cluster.connect("postgres");
    session.kill9_backend(victim.backend_pid());
    // The server needs a moment to notice; the old session is ended.
    for _ in 0..1_000 {
        if session.try_exec("SELECT 1").is_err() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(cluster.connect("postgres").text("SELECT n FROM t"), "7");
    assert!(cluster.is_running());
}

#[test]
fn dumps_of_all_formats_restore_into_another_cluster() {
    let source = Cluster::start();
    source.create_database("shop");
    source
        .connect("shop")
        .exec("CREATE TABLE t (n int PRIMARY KEY, s text); INSERT INTO t VALUES (1, 'a''b'), (2, NULL)");
    let dumps =
        [DumpFormat::Plain, DumpFormat::Custom, DumpFormat::Directory].map(|format| source.dump("shop", format));
    drop(source);
    let target = Cluster::start();
    for (i, dump) in dumps.iter().enumerate() {
        let database = format!("restored{i}");
        target.create_database(&database);
        target.restore(dump, &database);
        assert_eq!(
            target.connect(&database).text("SELECT string_agg(n || coalesce(s, '-'), ',' ORDER BY n) FROM t"),
            "1a'b,2-"
        );
    }
    assert!(target.try_restore(&dumps[0], "restored0", &[]).is_err(), "a second restore meets the tables");
}

#[test]
fn a_standby_follows_and_can_be_promoted() {
    let primary = Cluster::start();
    primary.connect("postgres").exec("CREATE TABLE t AS SELECT 1 AS n");
    let standby = primary.standby(Replication::Sync);
    primary.connect("postgres").exec("INSERT INTO t VALUES (2)");
    primary.wait_for_replay(&standby);
    let mut reader = standby.connect("postgres");
    assert_eq!(reader.text("SELECT sum(n) FROM t"), "3");
    reader.expect_sqlstate("25006", "INSERT INTO t VALUES (3)");
    primary.kill9_postmaster();
    standby.promote();
    standby.connect("postgres").exec("INSERT INTO t VALUES (3)");
}

#[test]
fn copies_share_the_identity_but_not_the_place() {
    let cluster = Cluster::start();
    cluster.connect("postgres").exec("CREATE TABLE t AS SELECT 5 AS n");
    let backup = cluster.base_backup();
    cluster.stop(Mode::Fast);
    let copy = cluster.copy_files_cold();
    for cluster in [&cluster, &backup, &copy] {
        cluster.start_again();
    }
    let look = |cluster: &Cluster| {
        let mut session = cluster.connect("postgres");
        (session.text("SELECT system_identifier FROM pg_control_system()"), session.text("SELECT n FROM t"))
    };
    assert_eq!(look(&cluster), look(&backup));
    assert_eq!(look(&cluster), look(&copy));
    assert_ne!(cluster.port(), copy.port());
    assert_ne!(cluster.data_directory(), backup.data_directory());
}

#[test]
fn settings_are_seen_by_the_next_session() {
    let cluster = Cluster::builder().setting("work_mem", "5MB").fsync_off().start();
    let mut session = cluster.connect("postgres");
    assert_eq!(session.text("SHOW work_mem"), "5MB");
    assert_eq!(session.text("SHOW fsync"), "off");
    cluster.set("work_mem", "6MB");
    assert_eq!(cluster.connect("postgres").text("SHOW work_mem"), "6MB");
    cluster.reset("work_mem");
    assert_eq!(cluster.connect("postgres").text("SHOW work_mem"), "5MB");
    let plain = Cluster::builder().prepare();
    plain.append_setting("port_typo", "1");
    assert!(plain.start_expecting_refusal().contains("port_typo"));
    assert!(!plain.is_running());
}

#[test]
fn nothing_remains_of_a_dropped_cluster() {
    let cluster = Cluster::start();
    let directory = cluster.directory().to_owned();
    let postmaster = Process::find(cluster.pid()).expect("runs");
    assert!(directory.is_dir());
    drop(cluster);
    assert!(!postmaster.is_alive());
    assert!(!directory.exists());
}

#[test]
fn the_server_never_runs_as_root() {
    let cluster = Cluster::start();
    let owner = std::fs::metadata(format!("/proc/{}", cluster.pid())).map(|m| std::os::unix::fs::MetadataExt::uid(&m));
    assert_ne!(owner.expect("runs"), 0);
    let path = cluster.write_file("secrets/erp_token", "s3cret");
    assert_eq!(cluster.psql("postgres", &format!("SELECT pg_read_file('{}')", path.display())).trim(), "s3cret");
}

#[test]
fn a_killed_test_process_leaves_neither_server_nor_files() {
    let this = std::env::current_exe().expect("a path");
    let mut child = Command::new(this)
        .args(["--exact", "boots_and_waits_to_be_killed", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let line = lines.map_while(Result::ok).find(|line| line.contains("cluster at ")).expect("boots");
    let mut words = line.split("cluster at ").nth(1).expect("the rest").split(' ');
    let postmaster = Process::find(words.next().expect("a pid").parse().expect("a number")).expect("runs");
    let directory = PathBuf::from(words.next().expect("a directory"));
    assert!(directory.is_dir());
    child.kill().expect("kills");
    child.wait().expect("ends");
    assert!(postmaster.wait_gone(30), "the server outlives its test");
    let removed = (0..1_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        !directory.exists()
    });
    assert!(removed, "{} stays", directory.display());
}

#[test]
#[ignore = "runs inside a_killed_test_process_leaves_neither_server_nor_files"]
fn boots_and_waits_to_be_killed() {
    let cluster = Cluster::start();
    println!("cluster at {} {}", cluster.pid(), cluster.directory().display());
    std::thread::sleep(std::time::Duration::from_secs(120));
}
