/* The load on Kafka through librdkafka: produce, consume, and end-to-end latency at a fixed rate.
 *
 *   kafka produce BROKER TOPIC CONNECTIONS PARTITIONS RECORDS SIZE
 *   kafka consume BROKER TOPIC CONNECTIONS PARTITIONS RECORDS
 *   kafka latency BROKER TOPIC RATE SECONDS SIZE
 *
 * Prints one JSON line. A producer or consumer handle is one connection to the one broker; each has a thread. Time runs from before the
 * first record is handed over to after the last delivery report, and from the call that begins to fetch, on a connection that is there, to
 * the last record. */
#include <pthread.h>
#include <rdkafka.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CONNECTIONS_MAX = 64, BATCH = 10000, ERROR_BYTES = 512, WARM_UP_SECONDS = 3 };

static const char *broker, *topic_name;
static long partitions, size;
static char *payload;

typedef struct {
    long index, records, done;
    int64_t first, last;
} connection;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void die(const char *what, const char *why) {
    fprintf(stderr, "kafka: %s: %s\n", what, why);
    exit(1);
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char error[ERROR_BYTES];
    if (rd_kafka_conf_set(conf, name, value, error, sizeof error) != RD_KAFKA_CONF_OK) die(name, error);
}

static void delivered(rd_kafka_t *handle, const rd_kafka_message_t *message, void *opaque) {
    (void)handle;
    if (message->err) die("a record was not taken", rd_kafka_err2str(message->err));
    ((connection *)opaque)->done++;
}

static rd_kafka_t *producer(connection *c, const char *linger_ms) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", broker);
    set(conf, "acks", "all");
    set(conf, "linger.ms", linger_ms);
    set(conf, "batch.num.messages", "100000");
    set(conf, "queue.buffering.max.messages", "1000000");
    /* As the Java client has it: what comes while five requests are on their way is gathered into one. */
    set(conf, "max.in.flight.requests.per.connection", "5");
    set(conf, "socket.nagle.disable", "true");
    rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    rd_kafka_conf_set_opaque(conf, c);
    char error[ERROR_BYTES];
    rd_kafka_t *handle = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, sizeof error);
    if (!handle) die("producer", error);
    return handle;
}

static void *produce(void *argument) {
    connection *c = argument;
    rd_kafka_t *handle = producer(c, "5");
    rd_kafka_topic_t *topic = rd_kafka_topic_new(handle, topic_name, NULL);
    int32_t partition = (int32_t)(c->index % partitions);
    c->first = now_ns();
    for (long sent = 0; sent < c->records;) {
        /* The payload stays where it is until the end, so it is not copied. */
        if (rd_kafka_produce(topic, partition, 0, payload, (size_t)size, NULL, 0, NULL) == 0) {
            sent++;
            if (sent % 1000 == 0) rd_kafka_poll(handle, 0);
        } else if (rd_kafka_last_error() == RD_KAFKA_RESP_ERR__QUEUE_FULL) {
            rd_kafka_poll(handle, 1);
        } else {
            die("produce", rd_kafka_err2str(rd_kafka_last_error()));
        }
    }
    while (c->done < c->records) rd_kafka_poll(handle, 100);
    c->last = now_ns();
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(handle);
    return NULL;
}

static rd_kafka_t *consumer(void) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", broker);
    /* As the Java consumer does, and mini-broker's. */
    set(conf, "check.crcs", "true");
    set(conf, "fetch.min.bytes", "1");
    set(conf, "socket.nagle.disable", "true");
    char error[ERROR_BYTES];
    rd_kafka_t *handle = rd_kafka_new(RD_KAFKA_CONSUMER, conf, error, sizeof error);
    if (!handle) die("consumer", error);
    return handle;
}

static void *consume(void *argument) {
    connection *c = argument;
    rd_kafka_t *handle = consumer();
    rd_kafka_topic_t *topic = rd_kafka_topic_new(handle, topic_name, NULL);
    int32_t partition = (int32_t)(c->index % partitions);
    const struct rd_kafka_metadata *metadata;
    if (rd_kafka_metadata(handle, 0, topic, &metadata, 10000)) die("consume", "no metadata");
    rd_kafka_metadata_destroy(metadata);
    c->first = now_ns();
    if (rd_kafka_consume_start(topic, partition, RD_KAFKA_OFFSET_BEGINNING)) die("consume", "start");
    rd_kafka_message_t **batch = calloc(BATCH, sizeof *batch);
    while (c->done < c->records) {
        ssize_t n = rd_kafka_consume_batch(topic, partition, 1000, batch, BATCH);
        if (n < 0) die("consume", rd_kafka_err2str(rd_kafka_last_error()));
        for (ssize_t i = 0; i < n; i++) {
            if (batch[i]->err) die("consume", rd_kafka_message_errstr(batch[i]));
            rd_kafka_message_destroy(batch[i]);
        }
        c->done += n;
    }
    c->last = now_ns();
    rd_kafka_consume_stop(topic, partition);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(handle);
    free(batch);
    return NULL;
}

static void in_parallel(void *(*work)(void *), long connections, long records) {
    static connection all[CONNECTIONS_MAX];
    pthread_t threads[CONNECTIONS_MAX];
    if (connections > CONNECTIONS_MAX) die("connections", "too many");
    for (long i = 0; i < connections; i++) {
        all[i].index = i;
        all[i].records = records / connections;
        pthread_create(&threads[i], NULL, work, &all[i]);
    }
    int64_t first = INT64_MAX, last = 0;
    long done = 0;
    for (long i = 0; i < connections; i++) {
        pthread_join(threads[i], NULL);
        if (all[i].first < first) first = all[i].first;
        if (all[i].last > last) last = all[i].last;
        done += all[i].done;
    }
    printf("{\"records\": %ld, \"seconds\": %.6f}\n", done, (double)(last - first) / 1e9);
}

typedef struct {
    long records;
    int64_t *latencies;
    rd_kafka_t *handle;
    rd_kafka_topic_t *topic;
} arrivals;

static void *arrive(void *argument) {
    arrivals *a = argument;
    for (long got = 0; got < a->records;) {
        rd_kafka_message_t *message = rd_kafka_consume(a->topic, 0, 10000);
        if (!message) die("latency", "a record did not come in 10 s");
        if (message->err) die("latency", rd_kafka_message_errstr(message));
        int64_t intended;
        memcpy(&intended, message->payload, sizeof intended);
        /* The first ones, with an intended time of 0, only warm both sides up. */
        if (intended != 0) a->latencies[got++] = now_ns() - intended;
        rd_kafka_message_destroy(message);
    }
    return NULL;
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void latency(double rate, double seconds) {
    long records = (long)(rate * seconds), warm_up = (long)(rate * WARM_UP_SECONDS);
    arrivals a = {.records = records, .latencies = calloc((size_t)records, sizeof(int64_t)), .handle = consumer()};
    a.topic = rd_kafka_topic_new(a.handle, topic_name, NULL);
    if (rd_kafka_consume_start(a.topic, 0, RD_KAFKA_OFFSET_BEGINNING)) die("latency", "start");
    connection c = {0};
    rd_kafka_t *handle = producer(&c, "0");
    rd_kafka_topic_t *topic = rd_kafka_topic_new(handle, topic_name, NULL);
    pthread_t reader;
    pthread_create(&reader, NULL, arrive, &a);
    int64_t every = (int64_t)(1e9 / rate), begin = now_ns();
    for (long i = -warm_up; i < records; i++) {
        int64_t due = begin + (i + warm_up) * every;
        struct timespec t = {due / 1000000000LL, due % 1000000000LL};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
        int64_t stamp = i < 0 ? 0 : due;
        memcpy(payload, &stamp, sizeof stamp);
        if (rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, payload, (size_t)size, NULL, 0, NULL))
            die("latency", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(handle, 0);
    }
    rd_kafka_flush(handle, 10000);
    pthread_join(reader, NULL);
    qsort(a.latencies, (size_t)records, sizeof(int64_t), by_value);
    double us[3];
    const double quantiles[3] = {0.5, 0.99, 0.999};
    for (int i = 0; i < 3; i++) us[i] = (double)a.latencies[(long)(quantiles[i] * (double)(records - 1))] / 1e3;
    printf("{\"records\": %ld, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f}\n", records, us[0], us[1],
           us[2], (double)a.latencies[records - 1] / 1e3);
}

int main(int count, char **arguments) {
    if (count < 7) die("usage", "see the head of kafka.c");
    broker = arguments[2];
    topic_name = arguments[3];
    if (strcmp(arguments[1], "latency") == 0) {
        size = atol(arguments[6]);
        payload = calloc(1, (size_t)size);
        latency(atof(arguments[4]), atof(arguments[5]));
        return 0;
    }
    long connections = atol(arguments[4]), records = atol(arguments[6]);
    partitions = atol(arguments[5]);
    if (strcmp(arguments[1], "produce") == 0 && count > 7) {
        size = atol(arguments[7]);
        payload = malloc((size_t)size);
        memset(payload, 'x', (size_t)size);
        in_parallel(produce, connections, records);
    } else if (strcmp(arguments[1], "consume") == 0) {
        in_parallel(consume, connections, records);
    } else {
        die("usage", "see the head of kafka.c");
    }
    return 0;
}
