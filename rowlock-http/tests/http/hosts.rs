//! The same request to several hosts.

use crate::raw::exchange;
use crate::server::{Answer, Server, over_a_socket, send};

async fn pay(server: &Server, host: &str) -> Answer {
    send(server.pay("k", "201").header("host", host)).await
}

over_a_socket! {
    async fn a_retry_to_another_name_of_the_service_is_a_replay() {
        let server = Server::plain().await;
        let first = pay(&server, "a.example").await;
        first.is_new(201);
        for host in ["b.example", "a.example:8080", "10.0.0.1"] {
            pay(&server, host).await.is_replay_of(&first);
        }
        assert_eq!(server.shop.runs(), 1);
    }

    async fn hosts_that_count_are_told_apart() {
        let server = Server::new(|layer| layer.host_counts(true)).await;
        let first = pay(&server, "a.example").await;
        first.is_new(201);
        for host in ["b.example", "a.example:8080"] {
            pay(&server, host).await.is_problem(422, "key-reused");
        }
        for host in ["a.example", "A.Example"] {
            pay(&server, host).await.is_replay_of(&first);
        }
        assert_eq!(server.shop.runs(), 1);
    }

    /// RFC 9112, section 3.2.2: the field Host is ignored then.
    async fn the_host_of_a_uri_in_absolute_form_counts() {
        let server = Server::new(|layer| layer.host_counts(true)).await;
        let first = pay(&server, "a.example").await;
        first.is_new(201);
        for (host, expected) in [("a.example", 201), ("b.example", 422)] {
            let request = format!(
                "POST http://{host}/pay HTTP/1.1\r\nhost: c.example\r\nx-user: ann\r\nidempotency-key: \"k\"\r\n\
                 connection: close\r\ncontent-length: 3\r\n\r\n100"
            );
            let (status, answer) = exchange(server.address, request.as_bytes()).await;
            assert_eq!(status, expected, "{host}: {answer}");
        }
        assert_eq!(server.shop.runs(), 1);
    }
}
