/* Loads libcurl at run time. */
#include "curl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* With OpenSSL first: GnuTLS takes more processor time. */
static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
enum { NAMES = sizeof names / sizeof *names };

/* CURL_GLOBAL_ALL. */
enum { EVERYTHING = 3 };

static struct fffs_curl curl;
static const char *version;                     /* set when curl is usable */
static int (*load_usual)(void *context);        /* or NULL */
static void (*stop_thread)(void);               /* likewise */
static pthread_once_t once = PTHREAD_ONCE_INIT; /* a child that is forked meanwhile begins anew */

/* The names of the functions, in the order of struct fffs_curl. */
static const char *const symbols[] = {
    "curl_easy_init",        "curl_easy_cleanup",        "curl_easy_setopt",    "curl_easy_getinfo",
    "curl_easy_strerror",    "curl_multi_init",          "curl_multi_cleanup",  "curl_multi_setopt",
    "curl_multi_add_handle", "curl_multi_remove_handle", "curl_multi_perform",  "curl_multi_poll",
    "curl_multi_info_read",  "curl_slist_append",        "curl_slist_free_all",
};
enum { SYMBOLS = sizeof symbols / sizeof *symbols };
_Static_assert(sizeof curl == SYMBOLS * sizeof(void *), "a name for each function");

/* Returns a function of the OpenSSL that libcurl calls, or NULL. */
static void *find_in_openssl(void *library, const char *told, const char *name)
{
    void *found = dlsym(library, name), *global = dlsym(RTLD_DEFAULT, name);

    /* An inactive library is in parentheses. With one OpenSSL among libcurl's and another one of the program, it is not known which
     * of them libcurl calls. */
    return strstr(told, " OpenSSL/") && (!global || global == found) ? found : NULL;
}

/* libcurl takes one file of authorities, the usual ones or others, and reads it for each connection. OpenSSL can add its usual ones, of
 * which it reads those that it needs if they are in a folder. With another library for TLS there is no such function. */
static void take_openssl(void *library, const char *told)
{
    void *usual = find_in_openssl(library, told, "SSL_CTX_set_default_verify_paths");
    void *stop = find_in_openssl(library, told, "OPENSSL_thread_stop");

    memcpy(&load_usual, &usual, sizeof usual);
    memcpy(&stop_thread, &stop, sizeof stop);
}

/* Returns the version of a library if it has all functions, or NULL. */
static const char *take_functions(void *library)
{
    int (*global_init)(long flags);
    const char *(*global_version)(void);
    void *found[SYMBOLS];

    for (int i = 0; i < SYMBOLS; i++) {
        found[i] = dlsym(library, symbols[i]);
        if (!found[i])
            return NULL;
    }
    /* ISO C forbids to convert a pointer to data into one to a function; POSIX allows to copy its bytes. */
    void *init = dlsym(library, "curl_global_init"), *tell = dlsym(library, "curl_version");
    memcpy(&global_init, &init, sizeof init);
    memcpy(&global_version, &tell, sizeof tell);
    if (!init || !tell || global_init(EVERYTHING))
        return NULL;
    memcpy(&curl, found, sizeof curl);
    const char *told = global_version();
    take_openssl(library, told);
    return told;
}

static void load(void)
{
    for (int i = 0; !version && i < NAMES; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);

        if (!library)
            continue;
        version = take_functions(library);
        if (!version)
            dlclose(library);
    }
}

const struct fffs_curl *fffs_curl_load(void)
{
    pthread_once(&once, load);
    return version ? &curl : NULL;
}

bool fffs_curl_add_usual(void *context)
{
    return load_usual && load_usual(context) == 1;
}

void fffs_curl_end_thread(void)
{
    if (stop_thread)
        stop_thread();
}

int32_t fffs_http_adds_usual(void)
{
    return fffs_curl_load() && load_usual;
}

const char *fffs_http_version(void)
{
    return fffs_curl_load() ? version : NULL;
}
