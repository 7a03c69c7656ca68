"""Stripe's own client against the server at argv[1]: it believes that this is Stripe."""

import sys
import threading
import uuid

import stripe

stripe.api_key = "sk_test_of_nobody"
stripe.api_base = sys.argv[1]
stripe.max_network_retries = 20
PATIENT, IMPATIENT = 60, 0.5


def pay(key, amount=500, timeout=PATIENT, **more):
    stripe.default_http_client = stripe.RequestsClient(timeout=timeout)
    return stripe.PaymentIntent.create(
        amount=amount, currency="eur", idempotency_key=key, **more
    )


# A key as this client makes them, and the same one as the draft writes it, are one key.
key = str(uuid.uuid4())
first = pay(key)
assert first.amount == 500, first
assert pay(key).id == first.id, "a retry gets the first answer"
assert pay(f'"{key}"').id == first.id, "with quotes it is the same key"

# Without a key of one's own, the client makes one for each call.
assert pay(None).id != pay(None).id

# Other parameters under the same key.
try:
    pay(key, amount=700)
    raise SystemExit("700 was taken under the key of 500")
except stripe.StripeError as error:
    assert error.http_status == 422, error.http_status

# The answer is later than the client waits: it sends the request again, while the first one runs, and gets its answer.
slow = pay(str(uuid.uuid4()), timeout=IMPATIENT, description="slow")
assert slow.amount == 500, slow

# Double clicks of twenty threads.
key, ids = str(uuid.uuid4()), []
threads = [
    threading.Thread(target=lambda: ids.append(pay(key, amount=900).id)) for _ in range(20)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(ids) == 20 and len(set(ids)) == 1, ids

# A refusal is an answer, too: the retry gets it again.
key, refusals = str(uuid.uuid4()), []
for _ in range(2):
    try:
        pay(key, description="declined")
        raise SystemExit("a card that is declined has paid")
    except stripe.CardError as error:
        refusals.append((error.http_status, error.code))
assert refusals == [(402, "card_declined")] * 2, refusals

print("all passed")
