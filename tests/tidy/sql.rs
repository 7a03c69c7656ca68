//! Where SQL stands, and in which form.

use crate::{PUBLISHED, outside};

#[test]
fn sql_stands_only_in_the_store() {
    let words = [
        "\"SELECT ",
        "\"INSERT ",
        "\"UPDATE ",
        "\"DELETE ",
        "\"WITH ",
        "\"CREATE ",
        "\"BEGIN",
    ];
    assert_eq!(
        outside(&PUBLISHED, &["src/store"], &words),
        Vec::<String>::new()
    );
}

#[test]
fn each_delete_on_mariadb_tells_that_it_was_cut() {
    let rooms = [
        "src/store/mysql/run.rs",
        "src/store/mysql/permit_tests.rs",
        "src/store/mysql/queue_tests.rs",
    ];
    assert_eq!(
        outside(&["src/store/mysql"], &rooms, &["DELETE FROM"]),
        Vec::<String>::new(),
        "see src/store/mysql/statement.rs"
    );
}
