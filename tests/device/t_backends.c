/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a backend, on machines made of a few files. No GPU is usable where this runs; what
 * a build with CUDA says of that differs from what one without says. */
#include "tt_test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "device/device.h"

static char root[64];

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/tutti-backends-XXXXXX");
    unsetenv("TUTTI_BACKEND");
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static void put(const char *path, const char *text)
{
    char full[256], command[512];
    FILE *f;
    snprintf(full, sizeof full, "%s%s", root, path);
    snprintf(command, sizeof command, "mkdir -p \"$(dirname '%s')\"", full);
    assert_int_equal(system(command), 0);
    f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static bool with_cuda(void)
{
    const tt_device_ops *ops = NULL;
    char note[8];
    (void)!tt_device_select_at(root, TUTTI_BACKEND_CUDA, &ops, note, sizeof note);
    return strstr(tutti_last_error(), "this build of tutti has none") == NULL;
}

static const char *note_of(tutti_backend wanted)
{
    static char note[512];
    const tt_device_ops *ops = NULL;
    assert_int_equal(tt_device_select_at(root, wanted, &ops, note, sizeof note), TUTTI_OK);
    assert_ptr_equal(ops, &tt_device_host);
    return note;
}

static void a_machine_without_gpus_needs_no_words(void **state)
{
    (void)state;
    if (with_cuda()) {
        assert_non_null(
            strstr(note_of(TUTTI_BACKEND_AUTO), "no GPU is usable (cudaGetDeviceCount"));
        assert_null(strchr(note_of(TUTTI_BACKEND_AUTO), '\n'));
    } else {
        assert_string_equal(note_of(TUTTI_BACKEND_AUTO), "");
    }
    put("/sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086\n");
    put("/sys/bus/pci/devices/0000:00:01.0/class", "0x030000\n");
    put("/sys/bus/pci/devices/0000:00:02.0/vendor", "0x10de\n"); /* NVIDIA's audio device */
    put("/sys/bus/pci/devices/0000:00:02.0/class", "0x040300\n");
    put("/sys/bus/pci/devices/0000:00:03.0/vendor", "");
    assert_null(strstr(note_of(TUTTI_BACKEND_AUTO), "0000:00:0"));
}

static void gpus_that_are_not_used_are_mentioned(void **state)
{
    (void)state;
    put("/sys/bus/pci/devices/0000:17:00.0/vendor", "0x10de\n");
    put("/sys/bus/pci/devices/0000:17:00.0/class", "0x030200\n");
    assert_non_null(strstr(note_of(TUTTI_BACKEND_AUTO), "0000:17:00.0"));
    assert_non_null(strstr(note_of(TUTTI_BACKEND_AUTO), "container started without its GPUs?"));
    assert_string_equal(note_of(TUTTI_BACKEND_HOST), "");
    setenv("TUTTI_BACKEND", "host", 1);
    assert_string_equal(note_of(TUTTI_BACKEND_AUTO), "");
}

static void a_driver_without_cuda_is_an_error_or_a_note(void **state)
{
    const tt_device_ops *ops = NULL;
    char note[8] = "before";
    (void)state;
    setenv("TUTTI_BACKEND", "auto", 1);
    put("/dev/nvidiactl", "");
    if (with_cuda()) {
        assert_int_equal(tt_device_select_at(root, TUTTI_BACKEND_AUTO, &ops, note, sizeof note),
                         TUTTI_ERR_UNSUPPORTED);
        assert_non_null(strstr(tutti_last_error(), "cudaGetDeviceCount"));
        assert_non_null(strstr(tutti_last_error(), "TUTTI_BACKEND=host"));
        assert_null(ops);
        assert_string_equal(note, "before");
        return;
    }
    assert_non_null(strstr(note_of(TUTTI_BACKEND_AUTO), "no CUDA"));
    assert_null(strchr(note_of(TUTTI_BACKEND_AUTO), '\n'));
}

static void what_cannot_be_had_is_refused(void **state)
{
    const tt_device_ops *ops = NULL;
    char note[8] = "before";

    (void)state;
    assert_int_equal(tt_device_select_at(root, TUTTI_BACKEND_CUDA, &ops, note, sizeof note),
                     TUTTI_ERR_UNSUPPORTED);
    setenv("TUTTI_BACKEND", "cuda", 1);
    assert_int_equal(tt_device_select_at(root, TUTTI_BACKEND_AUTO, &ops, note, sizeof note),
                     TUTTI_ERR_UNSUPPORTED);
    assert_non_null(strstr(tutti_last_error(), "TUTTI_BACKEND=cuda"));
    setenv("TUTTI_BACKEND", "hots", 1);
    assert_int_equal(tt_device_select_at(root, TUTTI_BACKEND_AUTO, &ops, note, sizeof note),
                     TUTTI_ERR_ARG);
    assert_int_equal(tt_device_select_at(root, (tutti_backend)9, &ops, note, sizeof note),
                     TUTTI_ERR_ARG);
    assert_null(ops);
    assert_string_equal(note, "before");
    assert_int_equal(tt_device_select_at(root, TUTTI_BACKEND_HOST, &ops, note, sizeof note),
                     TUTTI_OK); /* the program's word counts more */
    unsetenv("TUTTI_BACKEND");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_machine_without_gpus_needs_no_words, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(gpus_that_are_not_used_are_mentioned, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(a_driver_without_cuda_is_an_error_or_a_note, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(what_cannot_be_had_is_refused, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
