/* Hints: from the MPI_Info of the open and from AMPHI_MPIIO_HINTS="key=value;key=value", which the former outranks. */
#include "shim.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Cuts blanks at both ends: Fortran programs pass padded strings. */
static char *trimmed(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    size_t n = strlen(text);
    while (n && isspace((unsigned char)text[n - 1]))
        text[--n] = 0;
    return text;
}

static void set_bytes(const char *key, const char *value, int64_t least, int64_t most, int64_t *to)
{
    char *end;
    long long number = strtoll(value, &end, 10);
    int shift = 0;
    switch (toupper((unsigned char)*end)) {
    case 'K':
        shift = 10, end++;
        break;
    case 'M':
        shift = 20, end++;
        break;
    case 'G':
        shift = 30, end++;
        break;
    }
    if (end == value || *end || number < 0 || number > (INT64_MAX >> shift)) {
        fprintf(stderr, "amphi-mpiio: hint %s: '%s' is no number of bytes; ignored\n", key, value);
        return;
    }
    int64_t bytes = (int64_t)number << shift;
    if (bytes && bytes < least)
        bytes = least;
    *to = bytes > most ? most : bytes;
}

static void set_choice(const char *key, const char *value, int *to)
{
    if (!strcasecmp(value, "enable") || !strcasecmp(value, "true"))
        *to = 1;
    else if (!strcasecmp(value, "disable") || !strcasecmp(value, "false"))
        *to = 0;
    else if (!strcasecmp(value, "automatic"))
        *to = 2;
    else
        fprintf(stderr, "amphi-mpiio: hint %s: '%s' is not enable, disable or automatic; ignored\n", key, value);
}

static void set_scope(const char *key, const char *value, int *to)
{
    if (!strcasecmp(value, "page"))
        *to = 1;
    else if (!strcasecmp(value, "call"))
        *to = 0;
    else
        fprintf(stderr, "amphi-mpiio: hint %s: '%s' is not call or page; ignored\n", key, value);
}

static const char *const domains[] = {"disable", "cyclic", "even", "group-cyclic", "automatic"};

static void set_domains(const char *key, const char *value, int *to)
{
    for (int i = 0; i < (int)(sizeof domains / sizeof *domains); i++) {
        if (!strcasecmp(value, domains[i])) {
            *to = i;
            return;
        }
    }
    fprintf(stderr, "amphi-mpiio: hint %s: '%s' is not disable, cyclic, even, group-cyclic or automatic; ignored\n", key,
            value);
}

static const char *const transports[] = {"automatic", "sockets", "mpi", "memory"};

const char *transport_name(enum transport transport)
{
    return transports[transport];
}

static void set_transport(const char *key, const char *value, int *to)
{
    /* Memory is what MPI_File_get_info says of a job on one node, whose hints may be handed to the next open. */
    if (!strcasecmp(value, "automatic") || !strcasecmp(value, "auto") || !strcasecmp(value, "memory"))
        *to = TRANSPORT_AUTOMATIC;
    else if (!strcasecmp(value, "sockets"))
        *to = TRANSPORT_SOCKETS;
    else if (!strcasecmp(value, "mpi"))
        *to = TRANSPORT_MPI;
    else
        fprintf(stderr, "amphi-mpiio: hint %s: '%s' is not automatic, sockets or mpi; ignored\n", key, value);
}

static void set_hint(struct hints *hints, const char *key, const char *value)
{
    if (!strcmp(key, "cache") || !strcmp(key, "romio_caching")) {
        set_choice(key, value, &hints->cache);
    } else if (!strcmp(key, "cache_direct_io")) {
        set_choice(key, value, &hints->direct);
    } else if (!strcmp(key, "cache_group_lock")) {
        set_choice(key, value, &hints->group);
    } else if (!strcmp(key, "cache_copies")) {
        set_choice(key, value, &hints->copies);
    } else if (!strcmp(key, "cache_balance")) {
        set_choice(key, value, &hints->balance);
    } else if (!strcmp(key, "cache_merge_parts")) {
        set_choice(key, value, &hints->merges);
    } else if (!strcmp(key, "cache_migration")) {
        set_choice(key, value, &hints->migration);
    } else if (!strcmp(key, "cache_lock_scope")) {
        set_scope(key, value, &hints->relaxed);
    } else if (!strcmp(key, "cache_transport")) {
        set_transport(key, value, &hints->transport);
    } else if (!strcmp(key, "cache_page_size") || !strcmp(key, "romio_cache_page_size")) {
        set_bytes(key, value, 16, 1 << 30, &hints->page_bytes);
    } else if (!strcmp(key, "cache_limit")) {
        set_bytes(key, value, 1, (int64_t)1 << 40, &hints->limit_bytes);
    } else if (!strcmp(key, "cache_bypass_size")) {
        set_bytes(key, value, 1, INT64_MAX, &hints->bypass_bytes);
    } else if (!strcmp(key, "cache_stream_size")) {
        set_bytes(key, value, 1, INT64_MAX, &hints->stream_bytes);
    } else if (!strcmp(key, "cache_ranks_per_node")) {
        set_bytes(key, value, 1, 1 << 20, &hints->ranks_per_node);
    } else if (!strcmp(key, "cache_idle_time")) {
        set_bytes(key, value, 1, 86400000, &hints->idle_ms);
    } else if (!strcmp(key, "cache_prefetch_size")) {
        set_bytes(key, value, 1, 1 << 30, &hints->prefetch_bytes);
    } else if (!strcmp(key, "cache_domain_group")) {
        int64_t group = hints->domain_group;
        set_bytes(key, value, 1, 1 << 20, &group);
        hints->domain_group = (int)group;
    } else if (!strcmp(key, "cache_domains")) {
        set_domains(key, value, &hints->domain);
    } else if (!strcmp(key, "cache_flush_size")) {
        set_bytes(key, value, 1, 1 << 30, &hints->flush_bytes);
    }
}

static const char *const keys[] = {"romio_caching", "romio_cache_page_size", "cache",         "cache_page_size",
                                   "cache_limit",   "cache_bypass_size",     "cache_stream_size", "cache_flush_size",
                                   "cache_direct_io", "cache_ranks_per_node", "cache_domains",     "cache_domain_group",
                                   "cache_idle_time", "cache_group_lock",   "cache_lock_scope",  "cache_migration",
                                   "cache_prefetch_size", "cache_transport", "cache_copies", "cache_merge_parts",
                                   "cache_balance"};

void hints_read(MPI_Info info, struct hints *hints)
{
    *hints = (struct hints){.cache = 2, .direct = 2, .domain = DOMAIN_AUTOMATIC, .limit_bytes = 64 << 20,
                            .stream_bytes = 4 << 20, .flush_bytes = 4 << 20,
                            .idle_ms = 1000, .migration = 2, .merges = 2};
    const char *environment = getenv("AMPHI_MPIIO_HINTS");
    char *copy = environment ? strdup(environment) : NULL, *rest = NULL;
    for (char *part = copy ? strtok_r(copy, ";", &rest) : NULL; part; part = strtok_r(NULL, ";", &rest)) {
        char *equals = strchr(part, '=');
        if (!equals)
            continue;
        *equals = 0;
        set_hint(hints, trimmed(part), trimmed(equals + 1));
    }
    free(copy);
    for (size_t i = 0; info != MPI_INFO_NULL && i < sizeof keys / sizeof *keys; i++) {
        char value[MPI_MAX_INFO_VAL + 1];
        int found = 0;
        if (!PMPI_Info_get(info, keys[i], MPI_MAX_INFO_VAL, value, &found) && found)
            set_hint(hints, keys[i], trimmed(value));
    }
}

static int put(MPI_Info info, const char *key, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return PMPI_Info_set(info, key, text);
}

int hints_write(MPI_Info info, const struct shadow *shadow)
{
    const amphi_settings *s = &shadow->settings;
    int error = PMPI_Info_set(info, "cache", "enable");
    error = error ? error : PMPI_Info_set(info, "romio_caching", "enable");
    error = error ? error : put(info, "cache_page_size", s->page_bytes);
    error = error ? error : put(info, "romio_cache_page_size", s->page_bytes);
    error = error ? error : put(info, "cache_limit", s->limit_bytes);
    error = error ? error : put(info, "cache_bypass_size", s->bypass_bytes);
    error = error ? error : put(info, "cache_stream_size", s->stream_bytes);
    error = error ? error : put(info, "cache_flush_size", s->run_bytes);
    error = error ? error : put(info, "cache_idle_time", s->idle_ms);
    error = error ? error : put(info, "cache_prefetch_size", s->prefetch_bytes);
    static const char *const choices[] = {"disable", "enable", "automatic"};
    error = error ? error : PMPI_Info_set(info, "cache_direct_io", choices[s->direct]);
    error = error ? error : PMPI_Info_set(info, "cache_group_lock", choices[s->group]);
    /* The paper's rule, where the size of the page alone would not give it. */
    const char *migration = s->references == 2 && s->page_bytes > 128 << 10 ? "enable" : "automatic";
    error = error ? error : PMPI_Info_set(info, "cache_migration", s->references == 0 ? "disable" : migration);
    error = error ? error : PMPI_Info_set(info, "cache_copies", choices[s->copies]);
    error = error ? error : PMPI_Info_set(info, "cache_balance", choices[s->balance]);
    error = error ? error : PMPI_Info_set(info, "cache_merge_parts", choices[s->merges]);
    error = error ? error : PMPI_Info_set(info, "cache_lock_scope", s->relaxed ? "page" : "call");
    error = error ? error : PMPI_Info_set(info, "cache_domains", domains[shadow->domain]);
    error = error ? error : PMPI_Info_set(info, "cache_transport", transports[shadow->transport]);
    if (!error && shadow->transport_reason)
        error = PMPI_Info_set(info, "cache_transport_reason", shadow->transport_reason);
    /* What one rank writes the others see at once: some libraries ask for that before they write independently. */
    return error ? error : PMPI_Info_set(info, "romio_visibility_immediate", "true");
}
