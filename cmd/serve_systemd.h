/* serve_systemd.h - systemd's protocols for services, without its library: sockets that it has
 * opened (LISTEN_FDS, sd_listen_fds(3)) and the state that it is told (NOTIFY_SOCKET,
 * sd_notify(3)). */
#ifndef ZSE_CMD_SERVE_SYSTEMD_H
#define ZSE_CMD_SERVE_SYSTEMD_H

#include <sys/socket.h>
#include <sys/un.h>

#include "libcommon/base/err.h"
#include "libcommon/serve/server.h"

enum { MOST_INHERITED = 8 };

struct systemd {
    struct inherited_socket sockets[MOST_INHERITED]; int n_sockets;
    char names[MOST_INHERITED][96];             /* of the sockets, for messages */
    struct sockaddr_un to; socklen_t to_size;   /* NOTIFY_SOCKET */
    int fd;                                     /* to send to it; -1: there is none */
    int watchdog;                               /* systemd expects signs of life */
    int told, failed;                           /* 1 + the state that was sent last; a failure was reported */
};

/* Read the variables, and remove them from the environment, so that no child takes them for its
 * own.  Fails if LISTEN_FDS is for this process and malformed. */
int systemd_open(struct systemd *d, struct err *e);
void systemd_release(struct systemd *d);
/* The server_options.state: send changes, and signs of life every time. */
void systemd_state(struct systemd *d, enum server_state state);

#endif
