/* Preloaded into a process: writes each host that is looked up or connected to into the file $RECORDED, and lets it fail.
   This machine itself stays reachable: localhost, its numeric addresses, and sockets that are files. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void record(const char *call, const char *host) {
    char line[512];
    const char *path = getenv("RECORDED");
    int size = snprintf(line, sizeof line, "%s %s\n", call, host ? host : "?");
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (file < 0 || write(file, line, size) != size) abort(); /* a record that lacks a line would be taken for silence */
    close(file);
}

/* ---- names ---- */

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    struct in6_addr address;
    if (!host || !strcmp(host, "localhost") || inet_pton(AF_INET, host, &address) == 1 ||
        inet_pton(AF_INET6, host, &address) == 1) {
        int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
            (int (*)(const char *, const char *, const struct addrinfo *, struct addrinfo **))dlsym(RTLD_NEXT, "getaddrinfo");
        return real(host, service, hints, found);
    }
    record("getaddrinfo", host);
    return EAI_NONAME;
}

static struct hostent *no_host(const char *call, const char *host) {
    record(call, host);
    h_errno = HOST_NOT_FOUND;
    return NULL;
}

struct hostent *gethostbyname(const char *host) { return no_host("gethostbyname", host); }
struct hostent *gethostbyname2(const char *host, int family) { return (void)family, no_host("gethostbyname2", host); }

int gethostbyname_r(const char *host, struct hostent *entry, char *text, size_t size, struct hostent **found, int *why) {
    (void)entry, (void)text, (void)size;
    *found = no_host("gethostbyname_r", host);
    *why = HOST_NOT_FOUND;
    return 0;
}

int gethostbyname2_r(const char *host, int family, struct hostent *entry, char *text, size_t size, struct hostent **found,
                     int *why) {
    (void)family;
    return gethostbyname_r(host, entry, text, size, found, why);
}

static int no_answer(const char *call, const char *host) {
    record(call, host);
    h_errno = HOST_NOT_FOUND;
    return -1;
}

int res_query(const char *host, int kind, int type, unsigned char *answer, int size) {
    (void)kind, (void)type, (void)answer, (void)size;
    return no_answer("res_query", host);
}

int res_search(const char *host, int kind, int type, unsigned char *answer, int size) {
    (void)kind, (void)type, (void)answer, (void)size;
    return no_answer("res_search", host);
}

int res_nquery(void *state, const char *host, int kind, int type, unsigned char *answer, int size) {
    (void)state, (void)kind, (void)type, (void)answer, (void)size;
    return no_answer("res_nquery", host);
}

int res_nsearch(void *state, const char *host, int kind, int type, unsigned char *answer, int size) {
    (void)state, (void)kind, (void)type, (void)answer, (void)size;
    return no_answer("res_nsearch", host);
}

/* ---- addresses ---- */

static int is_refused(const char *call, const struct sockaddr *to) {
    char text[INET6_ADDRSTRLEN] = "";
    if (to && to->sa_family == AF_INET) {
        const struct in_addr *address = &((const struct sockaddr_in *)to)->sin_addr;
        if (ntohl(address->s_addr) >> 24 == 127) return 0;
        inet_ntop(AF_INET, address, text, sizeof text);
    } else if (to && to->sa_family == AF_INET6) {
        const struct in6_addr *address = &((const struct sockaddr_in6 *)to)->sin6_addr;
        if (IN6_IS_ADDR_LOOPBACK(address)) return 0;
        inet_ntop(AF_INET6, address, text, sizeof text);
    } else {
        return 0;
    }
    record(call, text);
    errno = ENETUNREACH;
    return 1;
}

int connect(int socket, const struct sockaddr *to, socklen_t size) {
    int (*real)(int, const struct sockaddr *, socklen_t) =
        (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    return is_refused("connect", to) ? -1 : real(socket, to, size);
}

ssize_t sendto(int socket, const void *data, size_t count, int flags, const struct sockaddr *to, socklen_t size) {
    ssize_t (*real)(int, const void *, size_t, int, const struct sockaddr *, socklen_t) =
        (ssize_t (*)(int, const void *, size_t, int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "sendto");
    return is_refused("sendto", to) ? -1 : real(socket, data, count, flags, to, size);
}
