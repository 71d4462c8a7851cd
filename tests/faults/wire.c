/*
 * A network cable that can be bad: two TAP interfaces in two network namespaces, and this program between them.
 *
 *     wire NETNS_A IF_A NETNS_B IF_B
 *
 * Prints "ready" once both interfaces exist, and goes away with them when its standard input is closed. A line on
 * standard input sets what a direction does to frames (a: from A to B, b: from B to A), all numbers at once:
 *
 *     a|b DELAY_US JITTER_US LOSS_PPM REORDER_PPM HOLD_US RATE_BYTES_PER_S
 *
 * Jitter keeps the order of frames; REORDER_PPM of them are held back HOLD_US longer and are overtaken. A rate has a
 * queue of QUEUE_BYTES behind it, what does not fit is lost. Every line is answered by "ok", so that the caller knows
 * when the fault begins.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { FRAME_BYTES = 65536, QUEUE_BYTES = 1 << 20, BATCH = 64 };

struct rules {
    uint64_t delay_us, jitter_us, loss_ppm, reorder_ppm, hold_us, rate;
};

struct frame {
    uint64_t due_us, number;
    int length;
    unsigned char *bytes;
};

struct direction {
    int from, to;
    struct rules rules;
    struct frame *heap; /* the frame that is due first is on top */
    int count, room;
    uint64_t last_due_us, free_at_us, queued_bytes, numbered;
};

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static int happens(uint64_t ppm) { return ppm > 0 && (uint64_t)(random() % 1000000) < ppm; }

static int before(const struct frame *left, const struct frame *right) {
    return left->due_us != right->due_us ? left->due_us < right->due_us : left->number < right->number;
}

static void put(struct direction *way, struct frame frame) {
    if (way->count == way->room) {
        way->room = way->room ? 2 * way->room : 256;
        way->heap = realloc(way->heap, (size_t)way->room * sizeof frame);
        if (!way->heap) fail("realloc");
    }
    int at = way->count++;
    for (; at > 0 && before(&frame, &way->heap[(at - 1) / 2]); at = (at - 1) / 2) way->heap[at] = way->heap[(at - 1) / 2];
    way->heap[at] = frame;
}

static struct frame take(struct direction *way) {
    struct frame top = way->heap[0], last = way->heap[--way->count];
    int at = 0;
    for (int child; (child = 2 * at + 1) < way->count; at = child) {
        if (child + 1 < way->count && before(&way->heap[child + 1], &way->heap[child])) child++;
        if (!before(&way->heap[child], &last)) break;
        way->heap[at] = way->heap[child];
    }
    way->heap[at] = last;
    return top;
}

static void receive(struct direction *way) {
    static unsigned char bytes[FRAME_BYTES];
    for (int n = 0; n < BATCH; n++) {
        int length = (int)read(way->from, bytes, sizeof bytes);
        if (length <= 0) return;
        const struct rules *rules = &way->rules;
        uint64_t now = now_us(), leaves = now;
        if (happens(rules->loss_ppm)) continue;
        if (rules->rate) {
            if (way->queued_bytes + (uint64_t)length > QUEUE_BYTES) continue;
            if (way->free_at_us < now) way->free_at_us = now;
            way->free_at_us += (uint64_t)length * 1000000 / rules->rate;
            leaves = way->free_at_us;
        }
        uint64_t due = leaves + rules->delay_us;
        if (rules->jitter_us) due += (uint64_t)random() % (rules->jitter_us + 1);
        if (due < way->last_due_us) due = way->last_due_us;
        way->last_due_us = due;
        if (happens(rules->reorder_ppm)) due += rules->hold_us;
        struct frame frame = {due, way->numbered++, length, malloc((size_t)length)};
        if (!frame.bytes) fail("malloc");
        memcpy(frame.bytes, bytes, (size_t)length);
        way->queued_bytes += (uint64_t)length;
        put(way, frame);
    }
}

static void deliver(struct direction *way) {
    uint64_t now = now_us();
    while (way->count && way->heap[0].due_us <= now) {
        struct frame frame = take(way);
        way->queued_bytes -= (uint64_t)frame.length;
        /* An interface that is down refuses the frame: a cable loses it. */
        if (write(way->to, frame.bytes, (size_t)frame.length) < 0 && errno != EIO && errno != EAGAIN) fail("write");
        free(frame.bytes);
    }
}

static int make_tap(const char *netns, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "/run/netns/%s", netns);
    int home = open(path, O_RDONLY | O_CLOEXEC);
    if (home < 0 || setns(home, CLONE_NEWNET)) fail(path);
    close(home);
    int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (tap < 0) fail("/dev/net/tun");
    struct ifreq request = {0};
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    if (ioctl(tap, TUNSETIFF, &request)) fail(name);
    return tap;
}

/* Reads what there is of standard input and obeys its whole lines; 0 at its end. */
static int obey(struct direction ways[2]) {
    static char text[512];
    static size_t used;
    ssize_t got = read(0, text + used, sizeof text - 1 - used);
    if (got <= 0) return 0;
    used += (size_t)got;
    text[used] = 0;
    for (char *end; (end = strchr(text, '\n')); ) {
        *end = 0;
        char which;
        struct rules rules;
        int found = sscanf(text, "%c %lu %lu %lu %lu %lu %lu", &which, &rules.delay_us, &rules.jitter_us,
                           &rules.loss_ppm, &rules.reorder_ppm, &rules.hold_us, &rules.rate);
        if (found == 7 && (which == 'a' || which == 'b')) ways[which == 'b'].rules = rules;
        puts(found == 7 ? "ok" : "not understood");
        fflush(stdout);
        used -= (size_t)(end + 1 - text);
        memmove(text, end + 1, used + 1);
    }
    return 1;
}

static struct timespec until_next(const struct direction ways[2]) {
    uint64_t now = now_us(), wait = 1000000;
    for (int i = 0; i < 2; i++) {
        if (!ways[i].count) continue;
        uint64_t due = ways[i].heap[0].due_us, left = due > now ? due - now : 0;
        if (left < wait) wait = left;
    }
    return (struct timespec){(time_t)(wait / 1000000), (long)(wait % 1000000) * 1000};
}

int main(int count, char **names) {
    if (count != 5) {
        fprintf(stderr, "usage: wire NETNS_A IF_A NETNS_B IF_B\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int a = make_tap(names[1], names[2]), b = make_tap(names[3], names[4]);
    struct direction ways[2] = {{.from = a, .to = b}, {.from = b, .to = a}};
    srandom(1);
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct pollfd polled[3] = {{a, POLLIN, 0}, {b, POLLIN, 0}, {0, POLLIN, 0}};
        struct timespec wait = until_next(ways);
        if (ppoll(polled, 3, &wait, NULL) < 0 && errno != EINTR) fail("ppoll");
        if (polled[2].revents && !obey(ways)) return 0;
        for (int i = 0; i < 2; i++) {
            if (polled[i].revents) receive(&ways[i]);
            deliver(&ways[i]);
        }
    }
}
