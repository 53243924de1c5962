;; Imports the interfaces of the host, with the types that `wit/` defines.
    (import "monstrum:plugin/types@0.1.0" (instance $types
        (type $constraints' (record
            (field "allowed-tools" (option (list string))) (field "scope-constraints" (option string))))
        (export "delegate-constraints" (type $constraints (eq $constraints')))
        (type $request' (record
            (field "request-id" string) (field "bot-id" string) (field "task-id" string) (field "operation" string)
            (field "tool-name" string) (field "params" string) (field "scope" (option string))
            (field "resource-id" (option string)) (field "resource-config" string)
            (field "delegate" (option $constraints)) (field "locale" string) (field "deadline-ms" u32)
            (field "context" string)))
        (export "execute-request" (type $request (eq $request')))
        (type $result' (variant (case "success" string) (case "error" string) (case "scope-violation" string)))
        (export "execute-result" (type $result (eq $result')))
        (type $failure' (record
            (field "code" string) (field "message" string) (field "sent" bool) (field "retry-after-ms" (option u32))))
        (export "failure" (type $failure (eq $failure')))))
    (alias export $types "execute-request" (type $request))
    (alias export $types "execute-result" (type $result))
    (alias export $types "failure" (type $failure))
    (import "monstrum:plugin/log@0.1.0" (instance $log
        (type $level' (enum "debug" "info" "warn" "error"))
        (export "level" (type $level (eq $level')))
        (export "write" (func (param "level" $level) (param "message" string) (param "fields" string)))))
    (import "monstrum:plugin/http@0.1.0" (instance $http
        (alias outer 1 $failure (type $failure'))
        (export "failure" (type $failure (eq $failure')))
        (type $header' (tuple string string))
        (export "header" (type $header (eq $header')))
        (type $request' (record
            (field "method" string) (field "url" string) (field "query" (list (tuple string string)))
            (field "headers" (list $header)) (field "body" (option (list u8))) (field "timeout-ms" (option u32))
            (field "authenticate" bool) (field "options" (list (tuple string string)))))
        (export "request" (type $request (eq $request')))
        (type $response' (record (field "status" u16) (field "headers" (list $header)) (field "body" (list u8))))
        (export "response" (type $response (eq $response')))
        (export "send" (func (param "request" $request) (result (result $response (error $failure)))))))
    (import "monstrum:plugin/credentials@0.1.0" (instance $credentials (export "status" (func (result string)))))
    (import "wasi:cli/exit@0.2.0" (instance $exit (export "exit" (func (param "status" (result))))))
