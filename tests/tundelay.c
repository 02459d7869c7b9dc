/* tundelay DELAY_MS NEAR_ADDRESS FAR_ADDRESS COMMAND...
 *
 * Runs COMMAND in a network namespace of its own, joined to this one by a link on which every packet takes DELAY_MS each
 * way. The kernel sees two ordinary point-to-point interfaces, so TCP meets the delay from its first SYN on: handshake,
 * slow start and acknowledgements behave as over a real line. No loss, no rate limit. For kernels without netem.
 *
 * One process holds both ends (a TUN device here, one there) and a queue each way. When COMMAND ends, so does the link;
 * nothing stays behind. Needs CAP_NET_ADMIN and /dev/net/tun. Exit status: that of COMMAND, or 2 with a message.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MTU = 1500, QUEUE_PACKETS = 8192 };

struct packet {
    int64_t due_ns;
    ssize_t size;
    char bytes[MTU];
};

struct direction {
    int from, to; /* device descriptors */
    unsigned first, count;
    struct packet *ring;
};

static void fail(const char *what) {
    fprintf(stderr, "tundelay: %s: %s\n", what, strerror(errno));
    exit(2);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void name_interface(struct ifreq *request, const char *name) {
    memset(request, 0, sizeof *request);
    snprintf(request->ifr_name, IFNAMSIZ, "%s", name);
}

static void set_up(const char *name) {
    struct ifreq request;
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    name_interface(&request, name);
    if (control < 0 || ioctl(control, SIOCGIFFLAGS, &request)) fail(name);
    request.ifr_flags |= IFF_UP;
    if (ioctl(control, SIOCSIFFLAGS, &request)) fail(name);
    close(control);
}

static void set_address(const char *name, unsigned long command, const char *address) {
    struct ifreq request;
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    name_interface(&request, name);
    struct sockaddr_in *in = (struct sockaddr_in *)&request.ifr_addr;
    in->sin_family = AF_INET;
    if (inet_pton(AF_INET, address, &in->sin_addr) != 1) {
        errno = EINVAL;
        fail(address);
    }
    if (control < 0 || ioctl(control, command, &request)) fail(name);
    close(control);
}

/* A TUN device in the present namespace, with its own address and the one at the other end. */
static int open_end(const char *name, const char *own, const char *peer) {
    struct ifreq request;
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (device < 0) fail("/dev/net/tun");
    name_interface(&request, name);
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    if (ioctl(device, TUNSETIFF, &request)) fail(name);
    set_address(name, SIOCSIFADDR, own);
    set_address(name, SIOCSIFDSTADDR, peer);
    set_up(name);
    return device;
}

static pid_t start(char **command) {
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child > 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    execvp(command[0], command);
    fail(command[0]);
    return -1;
}

/* Ahead of everything else that runs here, or a busy machine would lengthen the line. COMMAND does not inherit it. */
static void hurry(void) {
    struct sched_param first = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first))
        fprintf(stderr, "tundelay: no real-time priority; delays may be longer than asked for\n");
}

static void take(struct direction *way, int64_t delay_ns) {
    while (way->count < QUEUE_PACKETS) {
        struct packet *packet = &way->ring[(way->first + way->count) % QUEUE_PACKETS];
        packet->size = read(way->from, packet->bytes, sizeof packet->bytes);
        if (packet->size <= 0) return;
        packet->due_ns = now_ns() + delay_ns;
        way->count++;
    }
}

/* Hands over what is due; returns when the next one will be, or INT64_MAX. */
static int64_t deliver(struct direction *way, int64_t time_ns) {
    while (way->count > 0) {
        struct packet *packet = &way->ring[way->first];
        if (packet->due_ns > time_ns) return packet->due_ns;
        if (write(way->to, packet->bytes, packet->size) < 0 && errno == EAGAIN) return time_ns;
        way->first = (way->first + 1) % QUEUE_PACKETS;
        way->count--;
    }
    return INT64_MAX;
}

static void wait_for_packets(struct direction *ways, int64_t due_ns, int64_t time_ns) {
    struct pollfd ends[2] = {{ways[0].from, POLLIN, 0}, {ways[1].from, POLLIN, 0}};
    int64_t left = due_ns == INT64_MAX ? 100000000 : due_ns > time_ns ? due_ns - time_ns : 0;
    if (left > 100000000) left = 100000000; /* so that the end of COMMAND is noticed */
    struct timespec limit = {left / 1000000000, left % 1000000000};
    ppoll(ends, 2, &limit, NULL);
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: tundelay DELAY_MS NEAR_ADDRESS FAR_ADDRESS COMMAND...\n");
        return 2;
    }
    int64_t delay_ns = (int64_t)(atof(argv[1]) * 1e6);
    char near_name[IFNAMSIZ];
    snprintf(near_name, sizeof near_name, "tundelay%d", getpid() % 100000);
    int near = open_end(near_name, argv[2], argv[3]);
    if (unshare(CLONE_NEWNET)) fail("unshare");
    int far = open_end("tundelay", argv[3], argv[2]);
    set_up("lo");
    pid_t child = start(argv + 4);
    hurry();
    struct direction ways[2] = {{near, far, 0, 0, NULL}, {far, near, 0, 0, NULL}};
    for (int i = 0; i < 2; i++)
        if (!(ways[i].ring = calloc(QUEUE_PACKETS, sizeof *ways[i].ring))) fail("memory");
    int status;
    while (waitpid(child, &status, WNOHANG) == 0) {
        int64_t due_ns = INT64_MAX, time_ns = now_ns();
        for (int i = 0; i < 2; i++) {
            int64_t next_ns = deliver(&ways[i], time_ns);
            if (next_ns < due_ns) due_ns = next_ns;
        }
        wait_for_packets(ways, due_ns, now_ns());
        for (int i = 0; i < 2; i++) take(&ways[i], delay_ns);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
