/* numa.c - read the NUMA nodes of the machine, and divide threads among them. */
#include "libcommon/base/numa.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Parse a list of numbers, like "0-3,8": those of `may` (NULL: all) are added to *set. */
static void parse_list(const char *text, const cpu_set_t *may, cpu_set_t *set)
{
    for (char *end; *text >= '0' && *text <= '9'; text = *end == ',' ? end + 1 : end) {
        const unsigned long first = strtoul(text, &end, 10);
        const unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        for (unsigned long i = first; i <= last && i < CPU_SETSIZE; i++)
            if (!may || CPU_ISSET(i, may))
                CPU_SET(i, set);
    }
}

/* Read the numbers in a file of the folder of nodes; none if it cannot be read. */
static void read_list(const char *root, const char *name, const cpu_set_t *may, cpu_set_t *set)
{
    char path[512], text[4096];
    CPU_ZERO(set);
    snprintf(path, sizeof path, "%s/sys/devices/system/node/%s", root ? root : "", name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    parse_list(text, may, set);
}

void numa_read(struct numa *n, const cpu_set_t *may, const char *root)
{
    cpu_set_t online;
    n->n = 0;
    read_list(root, "online", NULL, &online);
    for (int id = 0; id < CPU_SETSIZE && n->n < NUMA_NODES; id++) {
        struct numa_node *node = &n->node[n->n];
        char name[32];
        if (!CPU_ISSET(id, &online))
            continue;
        snprintf(name, sizeof name, "node%d/cpulist", id);
        read_list(root, name, may, &node->cpus);
        node->id = id;
        n->n += CPU_COUNT(&node->cpus) > 0;
    }
}

int numa_node_of(const struct numa *n, int thread, int n_threads)
{
    long all = 0, before = 0;
    for (int i = 0; i < n->n; i++)
        all += CPU_COUNT(&n->node[i].cpus);
    for (int i = 0; i < n->n; i++) {
        before += CPU_COUNT(&n->node[i].cpus);
        /* the middle of the thread's part, so that threads are rounded to nodes evenly */
        if ((2L * thread + 1) * all < 2L * n_threads * before)
            return i;
    }
    return n->n - 1;
}
